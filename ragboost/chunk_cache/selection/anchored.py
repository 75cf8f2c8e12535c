"""Half of the budget for the first tokens of every chunk, half for what the question attends to. A
chunk's first tokens were computed as the beginning of everything (EPIC), and the question's
attention over the reused KV finds others (FusionRAG). No layer of the whole prompt is needed."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.epic import closeness_to_start
from ragboost.chunk_cache.selection.hybrid import rank
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class Anchored(SelectionPolicy):
    """Selection by the higher rank of closeness to the start and the question's attention."""

    reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        attention = (yield from view.mean_question_attention())[view.candidates]
        return torch.maximum(rank(attention), rank(closeness_to_start(view)))
