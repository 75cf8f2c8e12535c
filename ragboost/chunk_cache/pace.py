"""How much of a computation is done at a time, so that an engine can do other things in between.

Knows rows. Does not know engines or models: a computation rests between two pieces, and whoever
gave it its pace decides how long.
"""

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


AT_ONCE = Pace()
"""No rests at all."""
