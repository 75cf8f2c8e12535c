"""The graph of triplets."""

from pathlib import Path

import pytest

from ragboost.errors import RequestError
from ragboost.graph import GraphStore, Triplet

FACTS = [
    ("Elon Musk", "founded", "SpaceX"),
    ("SpaceX", "located in", "Texas"),
    ("SpaceX", "launched", "Falcon 9"),
    ("Elon Musk", "born in", "Pretoria"),
]


def test_triplets_are_stored_once() -> None:
    with GraphStore() as store:
        assert store.add(FACTS) == 4
        assert store.add([*FACTS, ("Texas", "part of", "USA")]) == 1
        assert len(store) == 5
        assert list(store)[:4] == [Triplet(*fact) for fact in FACTS]


def test_edges_are_found_in_the_order_stored() -> None:
    with GraphStore() as store:
        store.add(FACTS)

        assert store.edges_from("SpaceX") == [Triplet(*FACTS[1]), Triplet(*FACTS[2])]
        assert store.edges_from("SpaceX", limit=1) == [Triplet(*FACTS[1])]
        assert store.edges_from("nobody") == []


def test_names_are_found_whatever_their_case() -> None:
    with GraphStore() as store:
        store.add([("ÅSE", "knows", "Straße"), ("Apple", "is a", "apple")])

        assert store.find("åse") == "ÅSE"
        assert store.find("STRASSE") == "Straße"
        assert store.find("apple") == "apple"
        assert store.find("Apple") == "Apple"
        assert store.find("pear") is None


def test_a_graph_in_a_file_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "graph.db"
    with GraphStore(path) as store:
        store.add(FACTS)

    with GraphStore(path) as store:
        assert len(store) == 4


def test_a_file_that_is_no_graph_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no database, and long enough to be read as one" * 30)

    with pytest.raises(RequestError, match=r"notes\.txt"):
        GraphStore(path)


@pytest.mark.parametrize("bad", [("a", "b"), ("a", "", "c"), ("a", 1, "c")])
def test_what_is_no_triplet_is_refused_and_nothing_is_stored(bad: tuple[str, ...]) -> None:
    with GraphStore() as store:
        with pytest.raises(RequestError, match=r"triplets\[1\]"):
            store.add([FACTS[0], bad])  # type: ignore[list-item]
        assert len(store) == 0
