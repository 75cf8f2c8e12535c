"""The interface of retrievers, and their common ranking."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError
from ragboost.types import Document


class Retriever(Protocol):
    """Finds the documents of a corpus that are most relevant to a query.

    Results hold the `k` best documents, or all if there are fewer, most relevant first, each with
    its `score`. Equal scores keep the order of the corpus, so that results are deterministic.
    Raises RequestError if `k` is below 1 or a score is not finite.
    """

    def retrieve(self, query: str, k: int) -> list[Document]: ...

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]: ...


def check_k(k: int) -> None:
    if k < 1:
        raise RequestError(f"k must be at least 1, got {k}", param="k")


def best(scores: npt.NDArray[np.floating[Any]], k: int) -> npt.NDArray[np.intp]:
    bad = np.flatnonzero(~np.isfinite(scores))
    if bad.size:
        raise RequestError(
            f"score of document {bad[0]} must be finite, got {scores[bad[0]]}", param="score"
        )
    if k < len(scores):  # of equal scores at the last place all take part
        kth = np.partition(scores, -k)[-k]
        candidates = np.flatnonzero(scores >= kth)
        return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    return np.argsort(-scores, kind="stable")


def with_score(document: Document, score: float) -> Document:
    return replace(document, score=float(score))


def searchable_text(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text
