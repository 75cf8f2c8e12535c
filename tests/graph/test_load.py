"""Triplets from files and from LangChain's shapes."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from ragboost.errors import RequestError
from ragboost.graph import Triplet, read_triplets, triplets_from_langchain

WANTED = [Triplet("Ada", "wrote", "notes"), Triplet("Ada", "knew", "Babbage, C.")]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '["Ada", "wrote", "notes"]\n\n["Ada", "knew", "Babbage, C."]\n'),
        (
            "b.jsonl",
            '{"head": "Ada", "relation": "wrote", "tail": "notes"}\n'
            '{"subject": "Ada", "predicate": "knew", "object": "Babbage, C.", "page": 3}\n',
        ),
        ("c.csv", 'Ada,wrote,notes\nAda,knew,"Babbage, C."\n'),
        ("d.csv", '\ufeffpage,tail,head,relation\r\n1,notes,Ada,wrote\r\n2,"Babbage, C.",Ada,knew'),
        ("e.tsv", "Subject\tPredicate\tObject\nAda\twrote\tnotes\nAda\tknew\tBabbage, C.\n"),
    ],
)
def test_files_of_all_shapes_give_the_same_triplets(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    assert list(read_triplets(path)) == WANTED


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '["Ada", "wrote", "notes"]\n["Ada"]\n', r"a\.jsonl:2"),
        ("a.jsonl", "nonsense\n", r"a\.jsonl:1: not JSON"),
        ("a.csv", "Ada,wrote,notes\nAda,wrote\n", r"a\.csv:2"),
        ("a.csv", "Ada,wrote, \n", r"a\.csv:1"),
        ("a.txt", "Ada wrote notes\n", r"\.jsonl, \.csv or \.tsv"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")

    with pytest.raises(RequestError, match=says):
        list(read_triplets(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no-such"):
        list(read_triplets(tmp_path / "no-such.csv"))


def test_graph_documents_of_langchain_are_taken_as_objects_and_as_dicts() -> None:
    def node(name: object) -> SimpleNamespace:
        return SimpleNamespace(id=name, type="Person", properties={})

    edge = SimpleNamespace(source=node("Ada"), target=node(1843), type="WROTE_NOTES_IN")
    document = SimpleNamespace(nodes=[], relationships=[edge], source=None)
    plain = {"relationships": [{"source": {"id": "A"}, "type": "knows", "target": {"id": "B"}}]}

    assert list(triplets_from_langchain([document, plain])) == [
        Triplet("Ada", "wrote notes in", "1843"),
        Triplet("A", "knows", "B"),
    ]
    with pytest.raises(RequestError, match=r"documents\[0\]\.relationships\[0\]"):
        list(triplets_from_langchain([{"relationships": [{"type": "knows"}]}]))
