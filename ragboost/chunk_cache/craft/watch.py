"""Stop computing the tokens of chunks that the question does not look at, in the middle of a
forward pass (Cache-Craft section 3.2.2).

Knows rows and layers. What it decides is carried out by `narrow`.
"""

from collections.abc import Sequence

import torch

from ragboost.chunk_cache.craft.focus import FocusTracker
from ragboost.chunk_cache.model.attention.base import AttentionInputs
from ragboost.chunk_cache.selection.view import attention_mass


class FocusWatch:
    """Observer of the pass that computes a prompt, see `Plan.observe`.

    Args:
        chunks: positions (start, stop) of each chunk.
        reused: numbers of the chunks whose rows may be dropped: those with stored KV.
        num_question: tokens of the question, the last rows of the pass.
        num_layers: of the model.
        literal: see `FocusTracker`.

    Attributes:
        focused: numbers of the chunks that the question looks at; None: not settled.
        layer: after which the others stopped, counted from 1; None: they did not.
        dropped: numbers of the chunks whose rows stopped there.
        num_saved: rows that were not computed, summed over layers.
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
        going_on = torch.ones(len(inputs.positions), dtype=torch.bool, device=mass.device)
        for number in self._reused - self.focused:
            start, stop = self._chunks[number]
            going_on &= (inputs.positions < start) | (inputs.positions >= stop)
        num_dropped = int((~going_on).sum())
        if num_dropped == 0:
            return None
        self.layer, self.dropped = layer + 1, self._reused - self.focused
        self.num_saved = num_dropped * (self._num_layers - self.layer)
        return torch.nonzero(going_on).flatten()
