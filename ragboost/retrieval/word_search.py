"""Find documents by their words: BM25 with Lucene's formula, without an index on disk."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from ragboost.types import Document

_WORD = re.compile(r"\w+")
_K1, _B = 1.5, 0.75


class WordSearch:
    """The words of title and text, case-folded, in memory; for the command line and the demo."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        counts = [Counter(_words(searchable_text(document))) for document in documents]
        sizes = np.array([count.total() for count in counts], dtype=float)
        norms = _K1 * (1 - _B + _B * sizes / max(1.0, sizes.sum() / max(1, len(sizes))))
        holders: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for at, count in enumerate(counts):
            for word, num in count.items():
                holders[word].append((at, num))
        self._weights: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for word, found in holders.items():
            places, nums = np.array(found).T
            rarity = np.log1p((len(documents) - len(found) + 0.5) / (len(found) + 0.5))
            self._weights[word] = places, rarity * nums / (nums + norms[places])

    def retrieve(self, query: str, k: int) -> list[Document]:
        """Return the `k` best documents, or all if there are fewer; equal ones in their order."""
        scores = np.zeros(len(self._documents))
        for word in _words(query):
            if (weights := self._weights.get(word)) is not None:
                scores[weights[0]] += weights[1]
        return [self._documents[at] for at in np.argsort(-scores, kind="stable")[:k]]


def searchable_text(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
