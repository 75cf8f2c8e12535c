"""A selection policy whose choice is given."""

from collections.abc import Collection

import torch

from ragboost.chunk_cache.model.pace import Steps
from ragboost.chunk_cache.selection.policy import SelectionPolicy
from ragboost.chunk_cache.selection.view import SelectionView


class Oracle(SelectionPolicy):
    """A given choice of positions."""

    def __init__(self, positions: Collection[int] = ()) -> None:
        self.positions = positions

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        chosen = torch.tensor(list(self.positions), device=view.candidates.device)
        return torch.isin(view.candidates, chosen).float()
