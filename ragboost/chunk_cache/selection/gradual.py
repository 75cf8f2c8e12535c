"""Narrow down in two steps, from a shallow look at all tokens to a deeper one at twice the budget.

A stale token spoils the answer where the question reads it and other chunks change it. The first
look, layer 1, sees every token, but little of what other chunks say has arrived there. The second,
a layer deeper, is paid for the most promising tokens only (CacheBlend filters gradually too, by
change alone). How much the question reads a token is taken from fresh keys (A3) and from the reused
KV (FusionRAG), each of which misses what the other finds.
"""

import torch

from ragboost.chunk_cache.selection.base import Policy, choose
from ragboost.chunk_cache.selection.hybrid import rank
from ragboost.chunk_cache.selection.view import CHECK_LAYER, SelectionView

WIDTH = 2
"""Tokens that get the second look, as a multiple of the budget."""


class Gradual(Policy):
    """The better of a token's two ranks: in the first look and in the second. A model without a
    third layer gets the first look alone."""

    looks_at_all = True

    def score(self, view: SelectionView) -> torch.Tensor:
        here = view.candidates
        fresh = view.fresh_layer()
        reused = view.question_attention().mean(0)
        read = torch.maximum(rank(fresh.attention[here]), rank(reused[here]))
        first = read + rank(fresh.value_change[here])
        if view.num_layers <= CHECK_LAYER + 1:
            return first
        promising = choose(view.assembly, first, num_tokens=min(len(here), WIDTH * view.budget))
        deeper = view.deeper_layer(promising)
        second = deeper.attention[here] * deeper.value_change[here].sqrt()
        return torch.maximum(rank(first), rank(second))
