"""Neighbours from each source, worked out by hand: the closest last, oneself never."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.chunks.neighbours import by_cooccurrence, by_edges, by_vectors
from ragboost.errors import ChunkCacheError, RequestError
from ragboost.retrieval.bm25 import BM25Retriever
from ragboost.retrieval.corpus import Corpus
from ragboost.retrieval.neighbours import by_retriever, find_neighbours
from ragboost.types import Document


def test_the_most_similar_vector_stands_last() -> None:
    vectors = np.array([[1, 0], [0.9, 0.1], [0.5, 0.5], [0, 1]], dtype=np.float32)
    # Document 2 is equally close to all others.
    assert by_vectors(vectors, top_n=2) == [(2, 1), (2, 0), (1, 0), (1, 2)]


def test_equal_vectors_keep_the_order_of_the_corpus() -> None:
    vectors = np.ones((4, 2), dtype=np.float32)
    assert by_vectors(vectors, top_n=2) == [(2, 1), (2, 0), (1, 0), (1, 0)]


def test_there_may_be_fewer_neighbours_than_asked_for() -> None:
    vectors = np.eye(2, dtype=np.float32)
    assert by_vectors(vectors, top_n=10) == [(1,), (0,)]
    assert by_vectors(vectors[:1], top_n=10) == [()]
    assert by_vectors(vectors, top_n=0) == [(), ()]


@pytest.mark.parametrize("vectors", [np.ones(3), np.full((2, 2), np.nan)])
def test_vectors_that_are_none_are_refused(vectors: np.ndarray) -> None:  # type: ignore[type-arg]
    with pytest.raises(ChunkCacheError, match="vectors must be finite numbers of shape"):
        by_vectors(vectors, top_n=1)


def test_a_retriever_is_asked_with_each_document() -> None:
    texts = ["red apple tree", "red apple", "blue sea", "red apple", "sea of blue fish"]
    documents = [Document(text=text) for text in texts]
    found = by_retriever(BM25Retriever(documents), documents, top_n=1)
    # Documents 1 and 3 are the same: the first stands for both, and neither for the other.
    assert found == [(1,), (0,), (4,), (0,), (2,)]


def test_edges_add_up_and_have_directions() -> None:
    edges = [(0, 1, 1.0), (0, 2, 0.8), (0, 2, 0.3), (1, 0, 1.0), (2, 2, 9.0)]
    assert by_edges(edges, num_documents=3, top_n=5) == [(1, 2), (0,), ()]
    assert by_edges(edges, num_documents=3, top_n=1) == [(2,), (0,), ()]


def test_what_was_retrieved_together_most_often_stands_last() -> None:
    requests = [(0, 1, 2), (0, 2), (3,), (2, 0, 0), (1, 3)]
    # 0 with 2 three times, with 1 once; 1 with 0, 2 and 3 once each: the earliest is closest.
    assert by_cooccurrence(requests, num_documents=4, top_n=2) == [(1, 2), (2, 0), (1, 0), (1,)]


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 6), max_size=5), max_size=8), st.integers(0, 4))
def test_nobody_is_a_neighbour_of_oneself_or_twice(requests: list[list[int]], top_n: int) -> None:
    for number, near in enumerate(by_cooccurrence(requests, num_documents=7, top_n=top_n)):
        assert number not in near
        assert len(set(near)) == len(near) <= top_n


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
