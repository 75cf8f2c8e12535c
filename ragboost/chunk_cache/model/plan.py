"""The plan of one forward pass: its rows and their attention. It travels as a keyword argument
through the model to our attention."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from ragboost.chunk_cache.model.attention.backend import (
    AttentionBackend,
    AttentionInputs,
    exact_mask,
)

PLAN = "ragboost_plan"
"""The keyword argument that carries a `ForwardPlan`."""

Observer = Callable[[int, AttentionInputs], None]
"""Called with the number and the attention inputs of each layer."""


class StopForwardError(Exception):
    """The end of a forward pass at a layer, raised by observers."""


@dataclass(slots=True)
class ForwardPlan:
    positions: torch.Tensor  # slots of the rows, (rows,), ascending
    # attention backend; None: the model's own attention with a dense exact mask, if it accepts one
    backend: AttentionBackend | None = None
    # mask of the keys that any row may see, (keys,) bool; None: all keys
    visible: torch.Tensor | None = None
    observe: Observer | None = None  # called in each layer, see `Observer`
    # window of each layer, recorded during the pass
    windows: dict[int, int | None] = field(default_factory=dict)
    # cache of masks shared by all layers, filled during the pass
    memo: dict[Hashable, Any] = field(default_factory=dict)

    def attend(self, layer: int, inputs: AttentionInputs) -> torch.Tensor | None:
        """Observe the attention of a layer, and compute it by the backend, (1, heads, rows,
        head_dim); None if there is none, or it lacks what this layer needs."""
        self.windows[layer] = inputs.window
        if self.observe is not None:
            self.observe(layer, inputs)
        if self.backend is None or not self.backend.supports(inputs):
            return None
        return self.backend.attend(inputs)

    def mask(self, num_keys: int, window: int | None) -> torch.Tensor:
        key = ("dense", num_keys, window)
        if key not in self.memo:
            mask = exact_mask(self.positions, num_keys, window=window, visible=self.visible)
            self.memo[key] = mask[None, None]
        return self.memo[key]
