"""Neighbours of documents, read from a file of ids."""

from pathlib import Path

import pytest

from ragboost.errors import RequestError
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.integrations.retrieval.neighbours import read_neighbours
from ragboost.types import Document


def test_a_file_names_the_neighbours_by_id(tmp_path: Path) -> None:
    corpus = Corpus([Document("a", id=1), Document("b", id="1"), Document("c", id="x")])
    path = tmp_path / "near.jsonl"
    path.write_text('{"id": 1, "neighbours": ["x", "1"]}\n{"id": "x", "neighbours": [1]}\n')
    assert read_neighbours(corpus, path) == [(2, 1), (), (0,)]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"id": 1}', "neighbours must be a list of ids, got None"),
        ('{"id": 2, "neighbours": []}', "no document of the corpus has the id 2"),
        ('{"id": 1, "neighbours": [null]}', "no document of the corpus has the id None"),
    ],
)
def test_a_file_of_other_ids_is_refused_with_its_line(
    tmp_path: Path, line: str, sentence: str
) -> None:
    path = tmp_path / "near.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RequestError, match=rf"near\.jsonl:1: {sentence}"):
        read_neighbours(Corpus([Document("a", id=1), Document("b")]), path)
