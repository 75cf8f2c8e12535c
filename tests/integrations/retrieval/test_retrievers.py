"""Retrievers rank as their scores say, and break ties by corpus order."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from ragboost.errors import RequestError
from ragboost.integrations.retrieval import BM25Retriever, DenseRetriever, Retriever
from ragboost.types import Document

pytest.importorskip("bm25s", reason="needs the extra retrieval")
pytest.importorskip("faiss", reason="needs the extra retrieval")

DOCUMENTS = [
    Document("the lease was signed by the tenant", id="lease"),
    Document("the cat sat on the mat", id="cat"),
    Document("the cat sat on the mat", id="copy of cat"),
    Document("rent is due on the first of the month", id="rent", title="The lease"),
    Document("x y z", id="letters"),
    Document("one two three", id="numbers"),
    Document("red green blue", id="colours"),
]


LETTERS = "abcdefghijklmnopqrstuvwxyz"


def embed(texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Count the letters of each text."""
    assert len(texts) <= 256
    return np.array([[text.count(letter) for letter in LETTERS] for text in texts], np.float32)


@pytest.fixture(params=["bm25", "dense"])
def retriever(request: pytest.FixtureRequest) -> Retriever:
    if request.param == "bm25":
        return BM25Retriever(DOCUMENTS)
    return DenseRetriever(DOCUMENTS, embed)


def ids(documents: Sequence[Document]) -> list[Any]:
    return [document.id for document in documents]


def test_documents_come_best_first_with_scores_and_ties_in_corpus_order(
    retriever: Retriever,
) -> None:
    found = retriever.retrieve("cat mat sat", 7)
    copies = [found.index(document) for document in DOCUMENTS[1:3]]

    assert [document.score for document in found] == sorted((d.score for d in found), reverse=True)
    assert found[copies[0]].score == found[copies[1]].score is not None
    assert copies[1] == copies[0] + 1
    assert ids(found)[:2] == ["cat", "copy of cat"] or isinstance(retriever, DenseRetriever)


def test_fewer_documents_than_asked_for_are_all_returned(retriever: Retriever) -> None:
    assert sorted(ids(retriever.retrieve("lease", 100))) == sorted(ids(DOCUMENTS))
    assert retriever.retrieve_batch([], 3) == []


def test_batch_equals_single_queries(retriever: Retriever) -> None:
    queries = ["who signed the lease", "cat", ""]

    assert retriever.retrieve_batch(queries, 3) == [retriever.retrieve(q, 3) for q in queries]


def test_k_below_one_is_refused(retriever: Retriever) -> None:
    with pytest.raises(RequestError, match="k must be at least 1, got 0"):
        retriever.retrieve("cat", 0)


def test_bm25_scores_are_those_of_lucene() -> None:
    texts = ["a b b c", "c d", "e a", "b", "f g h i j"]
    words = [text.split() for text in texts]
    mean = sum(map(len, words)) / len(words)

    def gain(word: str, document: list[str]) -> float:
        held, count = sum(word in other for other in words), document.count(word)
        idf = math.log(1 + (len(words) - held + 0.5) / (held + 0.5))
        return idf * count / (count + 1.5 * (0.25 + 0.75 * len(document) / mean))

    expected = [sum(gain(word, document) for word in "bcbz") for document in words]

    found = BM25Retriever([Document(text, id=i) for i, text in enumerate(texts)])

    scores = [document.score for document in found.retrieve("b c b z", 5)]
    assert scores == pytest.approx(sorted(expected)[::-1], abs=1e-5)


def test_bm25_looks_into_titles_and_ignores_case() -> None:
    assert ids(BM25Retriever(DOCUMENTS).retrieve("LEASE rent", 1)) == ["rent"]


def test_bm25_of_no_documents_or_no_words_is_corpus_order() -> None:
    assert BM25Retriever([]).retrieve("cat", 3) == []
    assert ids(BM25Retriever([Document("?!", id=2), Document("...", id=1)]).retrieve("a", 3)) == [
        2,
        1,
    ]


@pytest.mark.parametrize("num_copies", [1, 3, 40])
def test_ties_at_the_last_place_go_to_the_earlier_document(num_copies: int) -> None:
    documents = [Document("z z z", id="best"), *(Document("z y", id=i) for i in range(num_copies))]
    documents += [Document(f"x w {i}", id=f"other {i}") for i in range(90)]

    assert ids(BM25Retriever(documents).retrieve("z", 2)) == ["best", 0]


def test_dense_scores_are_inner_products_however_many_documents() -> None:
    documents = [Document(LETTERS[i % 26] * (1 + i), id=i) for i in range(600)]

    found = DenseRetriever(documents, embed).retrieve("zz", 3)

    assert ids(found) == [597, 571, 545]
    assert [document.score for document in found] == [1196, 1144, 1092]
    assert DenseRetriever([], embed).retrieve("z", 3) == []


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((1, 2)), np.full((7, 2), np.nan)])
def test_vectors_of_another_shape_or_not_finite_are_refused(bad: Any) -> None:
    with pytest.raises(RequestError, match=r"embed must return finite vectors of shape \(7, "):
        DenseRetriever(DOCUMENTS, lambda _: bad)
