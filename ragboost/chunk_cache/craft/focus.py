"""Which chunks the question looks at (Cache-Craft eq. 15, Alg. 1): once that is settled, layer by
layer, the tokens of the others need not be computed further.

Knows numbers per chunk and layer. Does not know tensors or models; see `watch`.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

CLEAR_GAP = 1.5
"""The largest gap between two chunks must be so many times the mean gap to part them."""
WINDOW = 3
"""Layers that must agree."""


def largest_gap(attention: Sequence[float]) -> frozenset[int] | None:
    """Return the chunks above the largest gap in the sorted attention; None where none stands
    out."""
    order, gaps = _gaps(attention)
    total = sum(gaps)
    if not gaps or total <= 0.0:
        return None
    best = max(range(len(gaps)), key=lambda i: gaps[i])
    if len(gaps) > 1 and gaps[best] <= CLEAR_GAP * total / len(gaps):
        return None
    return frozenset(order[: best + 1])


def literal_cut(attention: Sequence[float]) -> frozenset[int] | None:
    """Return the chunks that lines 4 to 9 of Alg. 1 name as printed: the cut stands before the gap
    that adds the most entropy, which is seldom the largest. None for fewer than three chunks or no
    gap at all.

    The sum of line 7 begins at j = 0, where there is no gap; 0 log 0 is taken as 0.
    """
    order, gaps = _gaps(attention)
    total = sum(gaps)
    if len(gaps) < 2 or total <= 0.0:
        return None
    shares = [gap / total for gap in gaps]
    entropy = [-share * math.log(share) if share > 0.0 else 0.0 for share in shares]
    # h[i+1] - h[i] is the term of gap i+1; with i counted from 1, the cut keeps i chunks.
    best = max(range(1, len(gaps)), key=lambda i: entropy[i])
    return frozenset(order[:best])


class FocusTracker:
    """Sums the question's attention per chunk over the layers and says when its focus is settled.

    Args:
        num_layers: of the model.
        literal: cut as Alg. 1 is printed, and accept the first `WINDOW` layers that agree. The
            default cuts at the largest gap, and not before a quarter of the layers.
    """

    def __init__(self, num_layers: int, *, literal: bool = False) -> None:
        self._cut = literal_cut if literal else largest_gap
        self._first = WINDOW if literal else max(WINDOW, math.ceil(num_layers / 4))
        self._sums: list[float] = []
        self._found: list[frozenset[int] | None] = []

    def update(self, attention: Sequence[float]) -> frozenset[int] | None:
        """Add a layer.

        Args:
            attention: of the question to each chunk in the next layer.

        Returns:
            The focused chunks if the last layers agree, else None. A request whose layers never
            agree has no focus: every chunk goes on being computed.
        """
        if not self._sums:
            self._sums = [0.0] * len(attention)
        self._sums = [old + new for old, new in zip(self._sums, attention, strict=True)]
        self._found.append(self._cut(self._sums))
        last = self._found[-WINDOW:]
        settled = len(self._found) >= self._first and len(last) == WINDOW and len(set(last)) == 1
        return last[-1] if settled else None


def _gaps(attention: Sequence[float]) -> tuple[list[int], list[float]]:
    order = sorted(range(len(attention)), key=lambda i: -attention[i])
    values = [attention[i] for i in order]
    return order, [high - low for high, low in pairwise(values)]
