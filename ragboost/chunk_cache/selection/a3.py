"""A3: the tokens that the question attends to in the second layer (A3 eq. 3)."""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class ShallowAttention(Policy):
    """Queries and keys of layer 1 are computed for the whole prompt, so this attention is exact."""

    looks_at_all = True

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.fresh_layer().attention[view.candidates]
