"""Find the demo's documents by BM25 without a package of an extra; for small corpora."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

from ragboost.retrieval.retriever import searchable_text
from ragboost.types import Document

_WORD = re.compile(r"\w+")
_K1, _B = 1.5, 0.75


class WordSearch:
    """A retriever; ties go to the earlier document."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        self._weights: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        counts = [Counter(_words(searchable_text(document))) for document in documents]
        holders = Counter(word for count in counts for word in count)
        mean = sum(map(Counter.total, counts)) / len(documents)
        for at, count in enumerate(counts):
            norm = _K1 * (1 - _B + _B * count.total() / mean)
            for word, num in count.items():
                rarity = math.log1p((len(documents) - holders[word] + 0.5) / (holders[word] + 0.5))
                self._weights[word].append((at, rarity * num / (num + norm)))

    def retrieve(self, query: str, k: int) -> list[Document]:
        scores: defaultdict[int, float] = defaultdict(float)
        for word in _words(query):
            for at, weight in self._weights.get(word, ()):
                scores[at] += weight
        best = sorted(range(len(self._documents)), key=lambda at: -scores[at])[:k]
        return [self._documents[at] for at in best]


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
