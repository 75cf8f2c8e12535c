"""Baselines: recompute everything or nothing."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class _Constant(SelectionPolicy):
    _ratio = 0.0

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        return torch.zeros(len(view.candidates), device=view.candidates.device)

    def ratio(self, asked: float) -> float:
        return self._ratio


class Full(_Constant):
    _ratio = 1.0


class Reuse(_Constant):
    """Full reuse: no token is recomputed, at any requested ratio."""
