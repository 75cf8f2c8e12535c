"""Tokens that matter to the question and depend on other chunks: neither alone is a reason to
compute a token again.

The two measures have no common scale, so their ranks are added.
"""

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class Hybrid(Policy):
    """Rank of the question's attention plus rank of the keys' change in layer 1."""

    looks_at_all = True

    def score(self, view: SelectionView) -> torch.Tensor:
        change = view.fresh_layer().key_change[view.candidates]
        return rank(_attention(view)) + rank(change)


class HybridOffline(Policy):
    """The same with a sensitivity measured when the chunk was stored, which costs nothing now."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return rank(_attention(view)) + rank(view.assembly.sensitivity[view.candidates])


def rank(values: torch.Tensor) -> torch.Tensor:
    """Return each value's place from 0 (lowest) to 1 (highest), (n,) float."""
    places = values.argsort(stable=True).argsort(stable=True).float()
    return places / max(1, len(values) - 1)


def _attention(view: SelectionView) -> torch.Tensor:
    return view.question_attention().mean(0)[view.candidates]
