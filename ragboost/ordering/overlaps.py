"""The tokens that each pair of waiting requests shares, kept while requests come and go.

Knows documents as keys with lengths. Does not know what is cached.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Documents = Sequence[Hashable]
Tokens = npt.NDArray[np.int64]


class WaitingContext(NamedTuple):
    """The distinct documents of a request, most relevant first, and their lengths in tokens."""

    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, documents: Documents, tokens: Mapping[Hashable, int]) -> "WaitingContext":
        return cls(tuple(documents), tuple([tokens[document] for document in documents]))


class Overlaps:
    """A request is added and removed in time proportional to the holders of its documents."""

    def __init__(self) -> None:
        # The rows of each context; several if several requests have the same one.
        self._rows: dict[WaitingContext, list[int]] = {}
        self._free: list[int] = []
        self._holders: dict[Hashable, set[int]] = {}  # rows by document
        self._matrix: Tokens = np.zeros((0, 0), dtype=np.int64)

    def __len__(self) -> int:
        return len(self._matrix) - len(self._free)

    def update(self, contexts: Sequence[WaitingContext]) -> Tokens:
        """Replace the requests by these; return the tokens that each pair shares: (n, n)."""
        wanted: dict[WaitingContext, int] = {}
        for context in contexts:
            wanted[context] = wanted.get(context, 0) + 1
        for context in list(self._rows):
            while len(self._rows.get(context, ())) > wanted.get(context, 0):
                self._remove(context)
        for context, count in wanted.items():
            while len(self._rows.get(context, ())) < count:
                self._add(context)
        rows = {context: iter(numbers) for context, numbers in self._rows.items()}
        chosen = [next(rows[context]) for context in contexts]
        return self._matrix[np.ix_(chosen, chosen)]

    def _add(self, context: WaitingContext) -> None:
        if not self._free:
            size = len(self._matrix)
            self._matrix = np.pad(self._matrix, (0, max(16, size)))
            self._free = list(range(size, len(self._matrix)))
        row = self._free.pop()
        shared = [0] * len(self._matrix)
        for document, length in zip(*context, strict=True):
            holders = self._holders.setdefault(document, set())
            for other in holders:
                shared[other] += length
            holders.add(row)
        self._matrix[row] = self._matrix[:, row] = shared
        self._rows.setdefault(context, []).append(row)

    def _remove(self, context: WaitingContext) -> None:
        rows = self._rows[context]
        row = rows.pop()
        if not rows:
            del self._rows[context]
        self._free.append(row)
        self._matrix[row] = self._matrix[:, row] = 0
        for document in context.documents:
            holders = self._holders[document]
            holders.discard(row)
            if not holders:
                del self._holders[document]
