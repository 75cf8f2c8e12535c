"""The interface of retrievers; BM25, and exact search among embeddings.

A word of BM25 is a case-folded run of letters and digits, without stemming.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ragboost.errors import RequestError, import_extra
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


_WORD = re.compile(r"\w+")


class BM25Retriever:
    """Retriever over the words of title and text; documents without a word of the query score 0."""

    def __init__(self, documents: Sequence[Document]) -> None:
        import bm25s

        self._documents = documents
        self._model = None
        words = [_words(searchable_text(document)) for document in documents]
        if any(words):
            self._model = bm25s.BM25(k1=1.5, b=0.75)
            self._model.index(words, show_progress=False)

    def retrieve(self, query: str, k: int) -> list[Document]:
        check_k(k)
        words = _words(query)
        if self._model is not None and words:
            scores = self._model.get_scores(words)
        else:
            scores = np.zeros(len(self._documents))
        return [with_score(self._documents[i], scores[i]) for i in best(scores, k)]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        return [self.retrieve(query, k) for query in queries]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Returns a vector for each text, as rows; called with at most 256 texts."""

_BATCH = 256


class DenseRetriever:
    """Retriever over the embeddings of title and text.

    Which of equal scores at the last place are returned is FAISS's choice.

    Args:
        embed: for cosine similarity it returns vectors of length 1.

    Raises:
        MissingExtraError: the extra `retrieval` is not installed.
        RequestError: `embed` returns something else than finite vectors of one length.
    """

    def __init__(self, documents: Sequence[Document], embed: Embed) -> None:
        faiss: Any = import_extra("faiss", extra="retrieval")
        self._documents = documents
        self._embed = embed
        self._index: Any = None
        for at in range(0, len(documents), _BATCH):
            vectors = self._vectors(list(map(searchable_text, documents[at : at + _BATCH])))
            if self._index is None:
                self._index = faiss.IndexFlatIP(vectors.shape[1])
            self._index.add(vectors)

    def retrieve(self, query: str, k: int) -> list[Document]:
        return self.retrieve_batch([query], k)[0]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        check_k(k)
        found: list[list[Document]] = []
        for at in range(0, len(queries), _BATCH):
            texts = queries[at : at + _BATCH]
            if self._index is None:
                found += [[] for _ in texts]
                continue
            scores, places = self._index.search(self._vectors(texts), min(k, self._index.ntotal))
            for row in zip(scores, places, strict=True):
                order = np.lexsort((row[1], -row[0]))  # equal scores in the corpus's order
                found.append([with_score(self._documents[row[1][i]], row[0][i]) for i in order])
        return found

    def _vectors(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        vectors = np.ascontiguousarray(self._embed(texts), dtype=np.float32)
        length = self._index.d if self._index is not None else vectors.shape[-1]
        if vectors.shape != (len(texts), length) or not np.isfinite(vectors).all():
            raise RequestError(
                f"embed must return finite vectors of shape ({len(texts)}, {length}), "
                f"got {vectors.shape}",
                param="embed",
            )
        return vectors
