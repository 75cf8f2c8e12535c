"""Narrow the candidates in two steps: a look at layer 1 of all tokens, and a deeper one at three
times the budget. A stale token spoils the answer if the question reads it and other chunks change
it. Attention over fresh keys (A3) and over reused KV (FusionRAG) miss different ones, and both miss
a token that is found deeper by a changed key: so what changed most is looked at, too."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.hybrid import rank
from ragboost.chunk_cache.selection.policy import SelectionPolicy, choose
from ragboost.chunk_cache.selection.view import CHECK_LAYER, SelectionView

WIDTH = 3
"""Number of tokens in the second look, as a multiple of the budget."""


class Gradual(SelectionPolicy):
    """Selection by the higher rank of the two looks; the second needs a third layer."""

    looks_at_all = reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        here = view.candidates
        fresh = yield from view.fresh_layer()
        reused = yield from view.mean_question_attention()
        read = torch.maximum(rank(fresh.attention[here]), rank(reused[here]))
        changed = rank(fresh.value_change[here])
        first = rank(read + changed)
        if view.num_layers <= CHECK_LAYER + 1:
            return first
        promising = choose(
            view.assembly,
            torch.maximum(first, changed),
            num_tokens=min(len(here), WIDTH * view.budget),
        )
        deeper = yield from view.deeper_layer(promising)
        second = deeper.attention[here] * deeper.value_change[here].sqrt()
        return torch.maximum(first, rank(second))
