"""Find the chunks that the question focuses on, and stop computing the others' tokens in the middle
of a forward pass (Cache-Craft section 3.2.2, eq. 15, algorithm 1).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.selection.view import attention_mass

CLEAR_GAP = 1.5
"""Minimum ratio of the largest gap between two chunks to the mean gap."""
WINDOW = 3
"""Number of consecutive layers that must agree."""


def largest_gap(attention: Sequence[float]) -> frozenset[int] | None:
    """Return the chunks above the largest gap in the sorted attention; None if no gap is clearly
    the largest."""
    order, gaps = _gaps(attention)
    total = sum(gaps)
    if not gaps or total <= 0.0:
        return None
    best = max(range(len(gaps)), key=lambda i: gaps[i])
    if len(gaps) > 1 and gaps[best] <= CLEAR_GAP * total / len(gaps):
        return None
    return frozenset(order[: best + 1])


def literal_cut(attention: Sequence[float]) -> frozenset[int] | None:
    """Return the chunks chosen by lines 4 to 9 of algorithm 1 as printed: it cuts before the gap
    that adds the most entropy, which is rarely the largest. None for fewer than three chunks or if
    there is no gap.

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
    """The question's attention to each chunk, summed over layers until the focus is settled.

    Args:
        literal: cut as algorithm 1 is printed, and settle on the first `WINDOW` layers that agree.
            By default cut at the largest gap, and not before a quarter of the layers.
    """

    def __init__(self, num_layers: int, *, literal: bool = False) -> None:
        self._cut = literal_cut if literal else largest_gap
        self._first = WINDOW if literal else max(WINDOW, math.ceil(num_layers / 4))
        self._sums: list[float] = []
        self._found: list[frozenset[int] | None] = []

    def update(self, attention: Sequence[float]) -> frozenset[int] | None:
        """Add the question's attention to each chunk in the next layer.

        Returns:
            The indices of the focused chunks if the last layers agree; None otherwise.
        """
        if not self._sums:
            self._sums = [0.0] * len(attention)
        self._sums = [old + new for old, new in zip(self._sums, attention, strict=True)]
        self._found.append(self._cut(self._sums))
        last = self._found[-WINDOW:]
        settled = len(self._found) >= self._first and len(last) == WINDOW and len(set(last)) == 1
        return last[-1] if settled else None


class FocusObserver:
    """Choose the rows of a prompt's pass to keep, see `RowDropper`: once the focus is settled, not
    those of unfocused chunks.

    Args:
        chunks: positions (start, stop) of each chunk.
        reused: indices of the chunks whose rows may be dropped: those with stored KV.
        num_question: tokens of the question, the last rows of the pass.
        literal: see `FocusTracker`.

    Attributes:
        focused: indices of the focused chunks; None if not settled.
        layer: layer after which rows were dropped, from 1; None if none were.
    """

    def __init__(
        self,
        chunks: Sequence[tuple[int, int]],
        *,
        reused: Sequence[int],
        num_question: int,
        num_layers: int,
        literal: bool = False,
    ) -> None:
        self.focused: frozenset[int] | None = None
        self.layer: int | None = None
        self.dropped: frozenset[int] = frozenset()
        self.num_saved = 0
        self._chunks = list(chunks)
        self._reused = frozenset(reused)
        self._num_question, self._num_layers = num_question, num_layers
        self._tracker = FocusTracker(num_layers, literal=literal)

    def __call__(self, layer: int, inputs: AttentionInputs) -> torch.Tensor | None:
        if self.focused is not None or layer == self._num_layers - 1:
            return None
        mass = attention_mass(inputs, num_rows=self._num_question)
        self.focused = self._tracker.update(
            [float(mass[start:stop].sum()) for start, stop in self._chunks]
        )
        if self.focused is None:
            return None
        kept = torch.ones(len(inputs.positions), dtype=torch.bool, device=mass.device)
        for number in self._reused - self.focused:
            start, stop = self._chunks[number]
            kept &= (inputs.positions < start) | (inputs.positions >= stop)
        num_dropped = int((~kept).sum())
        if num_dropped == 0:
            return None
        self.layer, self.dropped = layer + 1, self._reused - self.focused
        self.num_saved = num_dropped * (self._num_layers - self.layer)
        return torch.nonzero(kept).flatten()


def _gaps(attention: Sequence[float]) -> tuple[list[int], list[float]]:
    order = sorted(range(len(attention)), key=lambda i: -attention[i])
    values = [attention[i] for i in order]
    return order, [high - low for high, low in pairwise(values)]
