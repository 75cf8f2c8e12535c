"""How much of a computation is done at a time, so that an engine can do other things in between.

Knows rows. Does not know engines or models: a computation rests between two pieces, and whoever
gave it its pace decides how long.
"""

import time
from collections.abc import Iterator

import torch


class Pace:
    """All rows in one piece, without rests. Subclasses give `rows` and do something in `rest`.

    Attributes:
        rows: that may go through the whole model in one piece; None: all.
    """

    rows: int | None = None

    def rest(self) -> None:
        """Called before each piece. What it raises ends the computation."""

    def pieces(self, rows: torch.Tensor, *, share: float = 1.0) -> Iterator[torch.Tensor]:
        """Cut ascending rows, (n,), into pieces. A row sees no later row, and those of earlier
        pieces are done by then, so that the result is the same.

        Args:
            rows: positions.
            share: part of the model that each goes through; a piece is the longer for it.
        """
        start = 0
        while start < len(rows):
            self.rest()
            count = len(rows) if self.rows is None else max(1, int(self.rows / share))
            yield rows[start : start + count]
            start += count


class DeviceStopwatch(Pace):
    """Another pace, and the time that is not spent resting.

    Args:
        pace: whose pieces and rests are taken over.
    """

    def __init__(self, pace: Pace) -> None:
        self.rows = pace.rows
        self._pace = pace
        self._rested_s = 0.0
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since it was made, without rests."""
        return time.perf_counter() - self._begin - self._rested_s

    def rest(self) -> None:
        begin = time.perf_counter()
        self._pace.rest()
        # A pace may change how much it gives from piece to piece.
        self.rows = self._pace.rows
        self._rested_s += time.perf_counter() - begin


AT_ONCE = Pace()
"""No rests at all."""
