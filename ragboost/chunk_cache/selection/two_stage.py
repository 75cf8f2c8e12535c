"""Two rounds with half the budget each: by the question's attention to the reused KV, then by its
attention to the KV with the first half recomputed (after ProphetKV's re-scoring).

The first half is computed twice, so this costs half a budget more than other policies.
"""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy, choose
from ragboost.chunk_cache.selection.view import SelectionView


class TwoStage(SelectionPolicy):
    """Selection by the attention averaged over the layers, in both rounds."""

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        first = (yield from view.mean_question_attention())[view.candidates]
        chosen = choose(view.assembly, first, num_tokens=view.budget // 2)
        yield from view.repair(chosen)
        second = (yield from view.mean_question_attention())[view.candidates]
        return second.masked_fill(torch.isin(view.candidates, chosen), float("inf"))
