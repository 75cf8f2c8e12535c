"""Half of the budget for the first tokens of every chunk, half for what the question attends to.

The two find different tokens: a chunk's first ones were computed as the beginning of everything,
whatever the question is (EPIC), and the question's attention over the reused KV says which others
it reads (FusionRAG). Neither needs a layer of the whole prompt.
"""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.epic import closeness_to_start
from ragboost.chunk_cache.selection.hybrid import rank
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class Anchored(SelectionPolicy):
    """Selection by the higher of two ranks: closeness to the chunk's start, and the question's
    attention averaged over the layers."""

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        attention = (yield from view.mean_question_attention())[view.candidates]
        return torch.maximum(rank(attention), rank(closeness_to_start(view)))
