"""Retrieval by BM25 (Okapi), with rank-bm25's model.

Words are runs of letters and digits, case-folded; no stemming, no stop words.
"""

import re
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ragboost.errors import import_extra
from ragboost.retrieval.retriever import best, check_k, searchable_text, with_score
from ragboost.types import Document

_WORD = re.compile(r"\w+")


class BM25Retriever:
    """Retriever over the words of title and text; see `Retriever`.

    Documents without a word of the query have score 0.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        words = [_words(searchable_text(document)) for document in documents]
        # rank-bm25 divides by the number of words of the corpus.
        self._model = _Postings(words) if any(words) else None

    def retrieve(self, query: str, k: int) -> list[Document]:
        check_k(k)
        if self._model is None:
            scores = np.zeros(len(self._documents))
        else:
            scores = self._model.scores(_words(query))
        return [with_score(self._documents[i], scores[i]) for i in best(scores, k)]

    def retrieve_batch(self, queries: Sequence[str], k: int) -> list[list[Document]]:
        return [self.retrieve(query, k) for query in queries]


class _Postings:
    """rank-bm25's scores without its pass over all documents for each word of a query.

    On 27,645 passages: 3 ms a query instead of 99 ms.
    """

    def __init__(self, words: Sequence[Sequence[str]]) -> None:
        self._okapi: Any = import_extra("rank_bm25", extra="retrieval").BM25Okapi(words)
        lengths = np.array(self._okapi.doc_len)
        k1, b = self._okapi.k1, self._okapi.b
        self._length_penalty = k1 * (1 - b + b * lengths / self._okapi.avgdl)
        self._documents: dict[str, array[int]] = {}  # positions by word
        self._counts: dict[str, array[int]] = {}  # occurrences of the word in each of them
        for position, counts in enumerate(self._okapi.doc_freqs):
            for word, count in counts.items():
                self._documents.setdefault(word, array("q")).append(position)
                self._counts.setdefault(word, array("q")).append(count)

    def scores(self, query: Sequence[str]) -> npt.NDArray[np.float64]:
        """Return the score of every document; repeated words of the query count repeatedly."""
        scores = np.zeros(len(self._length_penalty))
        for word in query:
            if word not in self._documents:
                continue
            documents = np.frombuffer(self._documents[word], dtype=np.int64)
            counts = np.frombuffer(self._counts[word], dtype=np.int64)
            gain = counts * (self._okapi.k1 + 1) / (counts + self._length_penalty[documents])
            scores[documents] += self._okapi.idf[word] * gain
        return scores


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
