"""The documents that waiting requests share, kept while requests come and go.

Knows documents as keys with lengths. Does not know what is cached.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Documents = Sequence[Hashable]
Tokens = npt.NDArray[np.int64]
Columns = npt.NDArray[np.intp]


class WaitingContext(NamedTuple):
    """The distinct documents of a request, most relevant first, and their lengths in tokens."""

    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, documents: Documents, tokens: Mapping[Hashable, int]) -> "WaitingContext":
        return cls(tuple(documents), tuple([tokens[document] for document in documents]))


class Shared(NamedTuple):
    """What the requests of a window share; each document has a column."""

    tokens: Tokens  # of each pair of requests: (n, n)
    holds: npt.NDArray[np.bool_]  # which request holds which document: (n, columns)
    columns: list[Columns]  # the documents of each request, most relevant first
    lengths: Tokens  # in tokens, by column


class Overlaps:
    """A request is added in time proportional to its documents and to the requests."""

    def __init__(self) -> None:
        # The rows of each context; several if several requests have the same one.
        self._rows: dict[WaitingContext, list[int]] = {}
        self._free_rows: list[int] = []
        self._columns: dict[Hashable, int] = {}
        self._free_columns: list[int] = []
        self._columns_of: dict[int, Columns] = {}  # by row
        self._tokens: Tokens = np.zeros((0, 0), dtype=np.int64)
        self._holds = np.zeros((0, 0), dtype=np.bool_)
        self._lengths: Tokens = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._columns_of)

    def update(self, contexts: Sequence[WaitingContext]) -> Shared:
        """Replace the requests by these; return what they share."""
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
        return Shared(
            self._tokens[np.ix_(chosen, chosen)],
            self._holds[chosen],
            [self._columns_of[row] for row in chosen],
            self._lengths,
        )

    def _add(self, context: WaitingContext) -> None:
        if not self._free_rows:
            size = len(self._holds)
            more = max(16, size)
            self._tokens = np.pad(self._tokens, (0, more))
            self._holds = np.pad(self._holds, ((0, more), (0, 0)))
            self._free_rows = list(range(size, size + more))
        row = self._free_rows.pop()
        columns = np.array([self._column(each) for each in context.documents], dtype=np.intp)
        self._lengths[columns] = context.tokens
        self._holds[row, columns] = True
        self._tokens[row] = shared_tokens(self._holds, columns, self._lengths)
        self._tokens[:, row] = self._tokens[row]
        self._columns_of[row] = columns
        self._rows.setdefault(context, []).append(row)

    def _column(self, document: Hashable) -> int:
        column = self._columns.get(document)
        if column is None:
            if not self._free_columns:
                size = len(self._lengths)
                more = max(64, size)
                self._lengths = np.pad(self._lengths, (0, more))
                self._holds = np.pad(self._holds, ((0, 0), (0, more)))
                self._free_columns = list(range(size, size + more))
            self._columns[document] = column = self._free_columns.pop()
        return column

    def _remove(self, context: WaitingContext) -> None:
        rows = self._rows[context]
        row = rows.pop()
        if not rows:
            del self._rows[context]
        self._free_rows.append(row)
        self._tokens[row] = self._tokens[:, row] = 0
        self._holds[row] = False
        columns = self._columns_of.pop(row)
        is_held = np.any(self._holds[:, columns], axis=0).tolist()
        for document, column, held in zip(context.documents, columns, is_held, strict=True):
            if not held:
                del self._columns[document]
                self._free_columns.append(int(column))


def shared_tokens(holds: npt.NDArray[np.bool_], columns: Columns, lengths: Tokens) -> Tokens:
    """Return the tokens that each row shares with a set of documents."""
    shared: Tokens = holds.take(columns, axis=1) @ lengths[columns]
    return shared
