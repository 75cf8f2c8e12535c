"""Look, repair, look again: half the budget by the question's attention to the reused KV, the other
half by its attention to the KV repaired so far. After ProphetKV's idea of re-scoring.

The first half is computed twice, so this costs half a budget more than the others.
"""

import torch

from ragboost.chunk_cache.selection.base import Policy, choose
from ragboost.chunk_cache.selection.view import SelectionView


class TwoStage(Policy):
    """Mean attention over the layers in both stages."""

    def score(self, view: SelectionView) -> torch.Tensor:
        first = view.question_attention().mean(0)[view.candidates]
        chosen = choose(view.assembly, first, num_tokens=view.budget // 2)
        view.repair(chosen)
        second = view.question_attention().mean(0)[view.candidates]
        return second.masked_fill(torch.isin(view.candidates, chosen), float("inf"))
