"""A3: the tokens that the question attends to in the second layer (A3 eq. 3)."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class A3(SelectionPolicy):
    """Selection by the question's attention in layer 1, computed for the whole prompt."""

    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).attention[view.candidates]
