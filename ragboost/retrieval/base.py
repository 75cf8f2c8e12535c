"""What every retriever does, and the ranking that they share.

Does not know where scores come from.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError
from ragboost.types import Document


class Retriever(Protocol):
    """Finds the documents of a corpus that are most relevant to a query.

    Answers hold the `k` best documents, or all if there are fewer, most relevant first, each with
    its `score`. Equal scores keep the order of the corpus, so the same query always has the same
    answer. Raises RequestError if `k` is below 1 or a score is not a finite number.
    """

    def retrieve(self, query: str, k: int) -> list[Document]:
        """The answer to one query."""
        ...

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        """The answers to several queries, in their order."""
        ...


def check_k(k: int) -> None:
    """Refuse to retrieve fewer than one document."""
    if k < 1:
        raise RequestError(f"k must be at least 1, got {k}", param="k")


def best(scores: npt.NDArray[np.floating[Any]], k: int) -> npt.NDArray[np.intp]:
    """Positions of the `k` highest scores, highest first, equal ones in order.

    Raises:
        RequestError: a score is NaN or infinite.
    """
    bad = np.flatnonzero(~np.isfinite(scores))
    if bad.size:
        raise RequestError(
            f"score of document {bad[0]} must be finite, got {scores[bad[0]]}", param="score"
        )
    return np.argsort(-scores, kind="stable")[:k]


def with_score(document: Document, score: float) -> Document:
    """The same document, as retrieved with this score."""
    return replace(document, score=float(score))


def searchable_text(document: Document) -> str:
    """What is indexed of a document: its title, where there is one, and its text."""
    return f"{document.title}\n{document.text}" if document.title else document.text
