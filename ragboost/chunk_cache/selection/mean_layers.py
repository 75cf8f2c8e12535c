"""What the question, run over the reused KV, attends to on average over all layers."""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class MeanLayers(Policy):
    """Like `fusionrag` with every layer in place of the last."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return view.question_attention().mean(0)[view.candidates]
