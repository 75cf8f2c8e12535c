"""Split a computation into pieces, so that an engine can run other work between them.

Knows rows. Does not know engines or models: a computation rests between two pieces, for as long as
its `Pace` decides.
"""

import time
from collections.abc import Generator, Iterator
from typing import TypeVar

import torch

T = TypeVar("T")

Steps = Generator[int, None, T]
"""A computation in pieces; rows that pass through a part of the model count by that share."""


class Pace:
    """All rows in one piece, without rests. Subclasses set `rows` and override `rest`.

    Attributes:
        rows: maximum rows that pass through the whole model in one piece; None: all.
    """

    rows: int | None = None

    def rest(self) -> None:
        """Wait. Called before each piece; an exception ends the computation."""

    def pieces(self, rows: torch.Tensor, *, share: float = 1.0) -> Iterator[torch.Tensor]:
        """Split ascending rows, (n,), into pieces. A row sees no later row, and earlier pieces are
        complete by then, so that the result is the same.

        Args:
            rows: positions.
            share: share of the model that the rows pass through; pieces are longer by 1 / share.
        """
        start = 0
        while start < len(rows):
            self.rest()
            count = len(rows) if self.rows is None else max(1, int(self.rows / share))
            yield rows[start : start + count]
            start += count


class DeviceStopwatch(Pace):
    """A wrapper of another pace that measures the time spent computing.

    Args:
        pace: the pace that determines pieces and rests.
    """

    def __init__(self, pace: Pace) -> None:
        self.rows = pace.rows
        self._pace = pace
        self._rested_s = 0.0
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since construction, without rests."""
        return time.perf_counter() - self._begin - self._rested_s

    def rest(self) -> None:
        begin = time.perf_counter()
        self._pace.rest()
        self.rows = self._pace.rows  # may change from piece to piece
        self._rested_s += time.perf_counter() - begin


def at_once(steps: Steps[T]) -> T:
    """Return the result of a computation, without a pause."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


AT_ONCE = Pace()
"""A pace without rests."""
