"""From a question to the relation paths that matter to it."""

from collections.abc import Iterator, Sequence

import pytest

from ragboost.errors import RequestError
from ragboost.graph import (
    GraphRetriever,
    GraphStore,
    RelationPath,
    best_paths,
    path_segments,
    path_text,
)

FACTS = [
    ("Alice", "likes", "Titanic"),
    ("Titanic", "is a", "tragedy"),
    ("Titanic", "is a", "romance"),
    ("Alice", "lives in", "Oslo"),
    ("Alice Munro", "wrote", "Runaway"),
    ("Oslo", "capital of", "Norway"),
    ("Norway", "part of", "Europe"),
    ("Titanic", "seen by", "Alice"),
]


@pytest.fixture
def store() -> Iterator[GraphStore]:
    with GraphStore() as store:
        store.add(FACTS)
        yield store


def written(paths: Sequence[RelationPath]) -> list[str]:
    return path_text(paths).splitlines()


def test_paths_go_as_far_as_asked_and_visit_nothing_twice(store: GraphStore) -> None:
    [subgraph] = GraphRetriever(store, hops=2).retrieve("What does Alice like?")

    assert subgraph.entity == "Alice"
    assert written(subgraph.paths) == [
        "Alice -likes-> Titanic -is a-> tragedy",
        "Alice -likes-> Titanic -is a-> romance",
        "Alice -lives in-> Oslo -capital of-> Norway",
    ]
    [deeper] = GraphRetriever(store, hops=3).retrieve("", entities=["oslo"])
    assert written(deeper.paths) == ["Oslo -capital of-> Norway -part of-> Europe"]


def test_the_longer_name_counts_and_punctuation_does_not(store: GraphStore) -> None:
    retriever = GraphRetriever(store)

    assert retriever.entities_in('Did Alice Munro\'s fans see "titanic", in Oslo?') == [
        "Alice Munro",
        "Titanic",
        "Oslo",
    ]
    assert retriever.entities_in("Nothing known here") == []
    assert retriever.retrieve("Nothing known here") == []


def test_the_paths_closest_to_the_question_are_kept_in_their_order(store: GraphStore) -> None:
    [subgraph] = GraphRetriever(store, max_paths=1).retrieve("In which capital does Alice live?")
    assert written(subgraph.paths) == ["Alice -lives in-> Oslo -capital of-> Norway"]

    paths = [RelationPath(("a", f"r{i}", "b")) for i in range(4)]
    assert best_paths("nothing in common", paths, k=2) == paths[:2]
    assert best_paths("r3 or r1", paths, k=2) == [paths[1], paths[3]]


def test_a_scorer_of_ones_own_decides(store: GraphStore) -> None:
    class Shortest:
        def score(self, question: str, paths: Sequence[RelationPath]) -> list[float]:
            return [-len(path.parts[-1]) for path in paths]

    retriever = GraphRetriever(store, max_paths=1, scorer=Shortest())
    [subgraph] = retriever.retrieve("", entities=["Alice"])
    assert subgraph.paths[0].parts[-1] == "Norway"

    class Broken:
        def score(self, question: str, paths: Sequence[RelationPath]) -> list[float]:
            return [float("nan")] * len(paths)

    with pytest.raises(RequestError, match="finite"):
        GraphRetriever(store, max_paths=1, scorer=Broken()).retrieve("Alice")


def test_numbers_out_of_range_are_refused(store: GraphStore) -> None:
    with pytest.raises(RequestError, match="hops must be at least 1"):
        GraphRetriever(store, hops=0)
    with pytest.raises(RequestError, match="k must be at least 1"):
        best_paths("", [], k=0)


def test_segments_join_to_the_written_path() -> None:
    path = RelationPath(("Alice", "likes", "Titanic"))

    assert path_segments(path) == ["Alice", " -likes->", " Titanic"]
    assert path_text([path]) == "Alice -likes-> Titanic"
    with pytest.raises(RequestError, match="odd number"):
        path_segments(RelationPath(("Alice", "likes")))
