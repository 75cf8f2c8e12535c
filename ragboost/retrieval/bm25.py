"""Retrieval by BM25 (Okapi): words are case-folded runs of letters and digits, without stemming."""

import math
import re
from array import array
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ragboost.retrieval.retriever import best, check_k, searchable_text, with_score
from ragboost.types import Document

_WORD = re.compile(r"\w+")
_K1, _B = 1.5, 0.75
_LEAST_IDF = 0.25  # of a word that more than half of the documents hold, as a share of the mean


class BM25Retriever:
    """Retriever over the words of title and text; documents without a word of the query score 0."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        words = [_words(searchable_text(document)) for document in documents]
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
    def __init__(self, words: Sequence[Sequence[str]]) -> None:
        lengths = np.array([len(document) for document in words])
        penalty = _K1 * (1 - _B + _B * lengths / lengths.mean())
        positions: dict[str, array[int]] = {}
        counts: dict[str, array[int]] = {}
        for position, document in enumerate(words):
            for word, count in Counter(document).items():
                positions.setdefault(word, array("q")).append(position)
                counts.setdefault(word, array("q")).append(count)
        idf = {
            word: math.log((len(words) - len(held) + 0.5) / (len(held) + 0.5))
            for word, held in positions.items()
        }
        least = _LEAST_IDF * sum(idf.values()) / len(idf)
        self._num_documents = len(words)
        self._scores = {}  # by word: positions of documents, and scores there
        for word, held in positions.items():
            documents = np.frombuffer(held, dtype=np.int64)
            number = np.frombuffer(counts[word], dtype=np.int64)
            weight = idf[word] if idf[word] >= 0 else least
            gain = weight * number * (_K1 + 1) / (number + penalty[documents])
            self._scores[word] = documents, gain

    def scores(self, query: Sequence[str]) -> npt.NDArray[np.float64]:
        scores = np.zeros(self._num_documents)
        for word in query:
            if word in self._scores:
                documents, gain = self._scores[word]
                scores[documents] += gain
        return scores


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
