"""CacheBlend: the tokens whose keys or values change most in the second layer (FusionRAG eq.
7-9)."""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class KeyDeviation(Policy):
    """By the keys."""

    looks_at_all = True

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.fresh_layer().key_change[view.candidates]


class ValueDeviation(Policy):
    """By the values, as in CacheBlend's own code."""

    looks_at_all = True

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.fresh_layer().value_change[view.candidates]
