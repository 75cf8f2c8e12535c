"""CacheBlend: what changes most in the second layer, keys or values (FusionRAG eq. 7-9)."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class CacheBlend(SelectionPolicy):
    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).key_change[view.candidates]


class CacheBlendValues(SelectionPolicy):
    """Selection by the change of the values, as CacheBlend's own code does."""

    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).value_change[view.candidates]
