"""The retriever ranks as its scores say, and breaks ties by corpus order."""

from collections.abc import Sequence
from typing import Any

import pytest

from ragboost.errors import RequestError
from ragboost.retrieval import BM25Retriever, Retriever
from ragboost.types import Document

DOCUMENTS = [
    Document("the lease was signed by the tenant", id="lease"),
    Document("the cat sat on the mat", id="cat"),
    Document("the cat sat on the mat", id="copy of cat"),
    Document("rent is due on the first of the month", id="rent", title="The lease"),
    Document("x y z", id="letters"),
    Document("one two three", id="numbers"),
    Document("red green blue", id="colours"),
]


@pytest.fixture
def retriever() -> Retriever:
    return BM25Retriever(DOCUMENTS)


def ids(documents: Sequence[Document]) -> list[Any]:
    return [document.id for document in documents]


def test_documents_come_best_first_with_scores_and_ties_in_corpus_order(
    retriever: Retriever,
) -> None:
    found = retriever.retrieve("cat mat sat", 2)

    assert ids(found) == ["cat", "copy of cat"]
    assert found[0].score == found[1].score is not None
    assert found[0] == DOCUMENTS[1]


def test_fewer_documents_than_asked_for_are_all_returned(retriever: Retriever) -> None:
    assert sorted(ids(retriever.retrieve("lease", 100))) == sorted(ids(DOCUMENTS))
    assert retriever.retrieve_batch([], 3) == []


def test_batch_equals_single_queries(retriever: Retriever) -> None:
    queries = ["who signed the lease", "cat", ""]

    assert retriever.retrieve_batch(queries, 3) == [retriever.retrieve(q, 3) for q in queries]


def test_k_below_one_is_refused(retriever: Retriever) -> None:
    with pytest.raises(RequestError, match="k must be at least 1, got 0"):
        retriever.retrieve("cat", 0)


def test_bm25_scores_are_those_of_rank_bm25() -> None:
    texts = ["a b b c", "c d", "e a", "b", "f g h i j"]
    documents = [Document(text, id=i) for i, text in enumerate(texts)]
    expected = [1.127025, 0.386116, 0.0, 0.946857, 0.0]  # BM25Okapi, rank-bm25 0.2.2

    found = BM25Retriever(documents).retrieve("b c b z", 5)

    assert [document.score for document in found] == pytest.approx(sorted(expected)[::-1], abs=1e-5)


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
