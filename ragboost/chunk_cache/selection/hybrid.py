"""The tokens that both matter to the question and depend on other chunks, by added ranks."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy, require_measured
from ragboost.chunk_cache.selection.view import SelectionView


class Hybrid(SelectionPolicy):
    """Selection by the ranks of the question's attention and of the change in layer 1."""

    looks_at_all = reads_question = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        change = (yield from view.fresh_layer()).key_change[view.candidates]
        attention = (yield from view.mean_question_attention())[view.candidates]
        return rank(attention) + rank(change)


class HybridOffline(SelectionPolicy):
    """Selection like `Hybrid`, with the sensitivity that was measured when the chunk was stored."""

    reads_question = reuses_plain = True

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        require_measured(view.assembly, "sensitivity", policy="hybrid-offline")
        attention = (yield from view.mean_question_attention())[view.candidates]
        return rank(attention) + rank(view.assembly.sensitivity[view.candidates])


def rank(values: torch.Tensor) -> torch.Tensor:
    """Return the rank of each value from 0 (lowest) to 1, (n,) float; equal ones share the mean."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    places = sizes.cumsum(0) - (sizes + 1) / 2
    return places[group] / max(1, len(values) - 1)
