"""Policies that first compute layers of the whole prompt, and compare them with the reused KV."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy, choose, rank
from ragboost.chunk_cache.selection.view import CHECK_LAYER, SelectionView

WIDTH = 3
"""Number of tokens in the second look of `Gradual`, as a multiple of the budget."""


class CacheBlend(SelectionPolicy):
    """Tokens whose keys change most in the second layer (FusionRAG eq. 7-9)."""

    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).key_change[view.candidates]


class CacheBlendValues(SelectionPolicy):
    """Selection by the change of the values, as CacheBlend's own code does."""

    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).value_change[view.candidates]


class A3(SelectionPolicy):
    """Selection by the question's attention in the second layer (A3 eq. 3)."""

    looks_at_all = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        return (yield from view.fresh_layer()).attention[view.candidates]


class Gradual(SelectionPolicy):
    """Two looks: at layer 1 of all tokens, and deeper at three times the budget, if there is a
    third layer; the higher rank counts.

    A stale token spoils the answer if the question reads it and other chunks change it. Attention
    over fresh keys (A3) and over reused KV (FusionRAG) miss different ones, and both miss a token
    that is found deeper by a changed key: so what changed most is looked at, too."""

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
