"""A policy that looks at nothing: a control."""

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class Random(SelectionPolicy):
    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        generator = torch.Generator().manual_seed(0)
        return torch.rand(len(view.candidates), generator=generator).to(view.candidates.device)
