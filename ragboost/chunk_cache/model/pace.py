"""Split a computation into pieces, so that an engine can run other work between them.

A computation is a generator: it yields after each piece how many rows that was, and returns its
result. Knows rows. Does not know engines or models.
"""

from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")

Steps = Generator[int, None, T]
"""A computation in pieces; rows that pass through a part of the model count by that share."""


class Pace:
    """The length of the pieces.

    Args:
        most: maximum rows that pass through the whole model in one piece; None: all.
    """

    def __init__(self, most: int | None = None) -> None:
        self.rows = self._most = most

    def limit(self, rows: int | None) -> None:
        """Make the next pieces at most this long, within `most`; None: only within `most`."""
        limits = [limit for limit in (rows, self._most) if limit is not None]
        self.rows = min(limits, default=None)

    def pieces(self, rows: torch.Tensor, *, share: float = 1.0) -> Iterator[torch.Tensor]:
        """Split ascending rows, (n,), into pieces. A row sees no later row, and earlier pieces are
        complete by then, so that the result is the same.

        Args:
            share: share of the model that the rows pass through; pieces are longer by 1 / share.
        """
        start = 0
        while start < len(rows):
            count = len(rows) if self.rows is None else max(1, int(self.rows / share))
            yield rows[start : start + count]
            start += count


def at_once(steps: Steps[T]) -> T:
    """Return the result of a computation, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def advance(steps: Steps[T], pace: Pace, *, rows: int | None) -> T | None:
    """Continue a computation for about this many rows; return its result once it has ended.

    Args:
        rows: None: to its end.
    """
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
