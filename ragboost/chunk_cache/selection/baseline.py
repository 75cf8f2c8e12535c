"""Bounds and controls: compute everything again, nothing, a random choice, a known right choice."""

from collections.abc import Collection

import torch

from ragboost.chunk_cache.selection.base import Policy
from ragboost.chunk_cache.selection.view import SelectionView


class Full(Policy):
    """Full attention: every reused token is computed again, whatever ratio is asked for."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return torch.zeros(len(view.candidates), device=view.candidates.device)

    def ratio(self, asked: float) -> float:
        return 1.0


class Reuse(Policy):
    """Full reuse: no token is computed again, whatever ratio is asked for."""

    def score(self, view: SelectionView) -> torch.Tensor:
        return torch.zeros(len(view.candidates), device=view.candidates.device)

    def ratio(self, asked: float) -> float:
        return 0.0


class Random(Policy):
    """A random choice that depends on the seed and the prompt's length alone."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score(self, view: SelectionView) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.rand(len(view.candidates), generator=generator).to(view.candidates.device)


class Oracle(Policy):
    """A choice given from outside, for tests: these positions first."""

    def __init__(self, positions: Collection[int] = ()) -> None:
        self.positions = positions

    def score(self, view: SelectionView) -> torch.Tensor:
        wanted = torch.tensor(list(self.positions), device=view.candidates.device)
        return torch.isin(view.candidates, wanted).float()
