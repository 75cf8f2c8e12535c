"""Retrieval by BM25, with bm25s: words are case-folded runs of letters and digits, no stemming."""

import re
from collections.abc import Sequence

import numpy as np

from ragboost.errors import import_extra
from ragboost.retrieval.retriever import best, check_k, searchable_text, with_score
from ragboost.types import Document

_WORD = re.compile(r"\w+")


class BM25Retriever:
    """Retriever over the words of title and text; documents without a word of the query score 0.

    Raises:
        MissingExtraError: the extra `retrieval` is not installed.
    """

    def __init__(self, documents: Sequence[Document]) -> None:
        bm25s = import_extra("bm25s", extra="retrieval")
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
