"""Split a computation into pieces, so that an engine can run other work between them: a generator
that yields after each piece how many rows that was, and returns its result."""

from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")

Steps = Generator[int, None, T]
"""A computation in pieces; rows that pass through a part of the model count by that share."""


class Pace:
    """The length of the pieces: `most` rows through the whole model; None: all."""

    def __init__(self, most: int | None = None) -> None:
        self.rows = self._most = most

    def limit(self, rows: int | None) -> None:
        limits = [limit for limit in (rows, self._most) if limit is not None]
        self.rows = min(limits, default=None)

    def pieces(self, rows: torch.Tensor, *, share: float = 1.0) -> Iterator[torch.Tensor]:
        """Split ascending rows, (n,), into pieces, longer by 1 / share of the model that they pass
        through. A row sees no later row, so that the result is the same."""
        start = 0
        while start < len(rows):
            count = len(rows) if self.rows is None else max(1, int(self.rows / share))
            yield rows[start : start + count]
            start += count


def at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def advance(steps: Steps[T], pace: Pace, *, rows: int | None) -> T | None:
    """Continue for about this many rows (None: to the end); return the result once it has ended."""
    left = rows
    least = 0 if rows is None else rows // 4  # no scraps of a few rows
    try:
        while left is None or left > least:
            pace.limit(left)
            count = next(steps)
            left = None if left is None else left - count
    except StopIteration as end:
        result: T = end.value
        return result
    return None
