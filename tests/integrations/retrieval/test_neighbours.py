"""Neighbours from each source, worked out by hand: the closest last, oneself never."""

from pathlib import Path

import pytest

from ragboost.errors import RequestError
from ragboost.integrations.retrieval.corpus import Corpus
from ragboost.integrations.retrieval.neighbours import by_retriever, find_neighbours
from ragboost.integrations.retrieval.retriever import BM25Retriever
from ragboost.types import Document


def test_a_retriever_is_asked_with_each_document() -> None:
    texts = ["red apple tree", "red apple", "blue sea", "red apple", "sea of blue fish"]
    documents = [Document(text=text) for text in texts]
    found = by_retriever(BM25Retriever(documents), documents, top_n=1)
    # Documents 1 and 3 are the same: the first stands for both, and neither for the other.
    assert found == [(1,), (0,), (4,), (0,), (2,)]


def test_a_file_names_the_neighbours_by_id(tmp_path: Path) -> None:
    corpus = Corpus([Document("a", id=1), Document("b", id="1"), Document("c", id="x")])
    path = tmp_path / "near.jsonl"
    path.write_text('{"id": 1, "neighbours": ["x", "1"]}\n{"id": "x", "neighbours": [1]}\n')
    assert find_neighbours(corpus, path, top_n=5) == [(2, 1), (), (0,)]
    assert find_neighbours(corpus, path, top_n=1) == [(1,), (), (0,)]
    assert find_neighbours(corpus, path, top_n=0) == [(), (), ()]


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
        find_neighbours(Corpus([Document("a", id=1), Document("b")]), path, top_n=1)
