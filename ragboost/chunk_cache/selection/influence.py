"""What a stale token does to the answer: how much it changes, times how much the question reads it.

How much it is read is taken from two places, each blind where the other sees: layer 1 over fresh
keys (A3) knows what the other chunks made of a token, but only what shows in a shallow layer; all
layers over the reused KV read deep, but a token that lost its context may not look relevant there.
"""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class Influence(Policy):
    """The sum of both shares of attention, times the size of the change of the values in layer
    1."""

    def score(self, view: SelectionView) -> torch.Tensor:
        fresh = view.fresh_layer()
        shallow = fresh.attention[view.candidates]
        deep = view.question_attention().mean(0)[view.candidates]
        read = shallow / shallow.sum().clamp_min(1e-12) + deep / deep.sum().clamp_min(1e-12)
        return read * fresh.value_change[view.candidates].sqrt()
