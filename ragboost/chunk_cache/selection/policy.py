"""The interface of selection policies, and the choice of positions from their scores. Exact tokens
are no candidates; missing ones and the question are computed outside the budget."""

from abc import ABC, abstractmethod

import torch

from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.pace import Pace, Steps
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection.view import SelectionView
from ragboost.errors import ChunkCacheError


class SelectionPolicy(ABC):
    looks_at_all = False  # the policy first computes some layers of the whole prompt
    reads_question = False  # it first computes the question over the reused KV

    @abstractmethod
    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        """Return the score of each candidate, (candidates,) float; the highest are recomputed."""

    def select(
        self,
        model: ReusableModel,
        assembly: Assembly,
        *,
        ratio: float,
        granularity: int = 1,
        backend: AttentionBackend | None = None,
        pace: Pace | None = None,
    ) -> Steps[torch.Tensor]:
        num_tokens, candidates = self.num_tokens(assembly, ratio), assembly.candidates
        if num_tokens in (0, len(candidates)):
            return candidates[:num_tokens]
        view = SelectionView(model, assembly, budget=num_tokens, backend=backend, pace=pace)
        scores = yield from self.score(view)
        return choose(assembly, scores, num_tokens=num_tokens, granularity=granularity)

    def ratio(self, asked: float) -> float:
        return asked

    def num_tokens(self, assembly: Assembly, asked: float) -> int:
        return budget(self.ratio(asked), len(assembly.candidates))


class _Constant(SelectionPolicy):
    _ratio = 0.0

    def score(self, view: SelectionView) -> Steps[torch.Tensor]:
        yield from ()
        return torch.zeros(len(view.candidates), device=view.candidates.device)

    def ratio(self, asked: float) -> float:
        return self._ratio


class Full(_Constant):
    _ratio = 1.0


class Reuse(_Constant):
    """Full reuse: no token is recomputed, at any requested ratio."""


def budget(ratio: float, num_candidates: int) -> int:
    if not 0.0 <= ratio <= 1.0:
        raise ChunkCacheError(f"recompute ratio must be in [0, 1], got {ratio}")
    return round(ratio * num_candidates)


def choose(
    assembly: Assembly, scores: torch.Tensor, *, num_tokens: int, granularity: int = 1
) -> torch.Tensor:
    """Return the positions of the best candidates, ascending; ties go to the earlier one. A block
    of `granularity` tokens from a chunk's start has the score of its best token, and is chosen if
    at least half of it fits."""
    candidates = assembly.candidates
    if granularity == 1:
        order = scores.argsort(descending=True, stable=True)[:num_tokens]
        return candidates[order].sort().values
    block = _block_numbers(assembly, candidates, granularity)
    num_blocks = int(block.max()) + 1 if len(block) else 0
    best = torch.full((num_blocks,), float("-inf"), device=scores.device)
    best = best.scatter_reduce(0, block, scores.float(), "amax")
    size = torch.bincount(block, minlength=num_blocks)
    order = best.argsort(descending=True, stable=True)
    fits = size[order].cumsum(0) - size[order] / 2 <= num_tokens
    chosen = torch.zeros(num_blocks, dtype=torch.bool, device=scores.device)
    chosen[order[fits]] = num_tokens > 0
    return candidates[chosen[block]]


def rank(values: torch.Tensor) -> torch.Tensor:
    """Return the rank of each value from 0 (lowest) to 1, (n,) float; equal ones share the mean."""
    _, group, sizes = values.unique(return_inverse=True, return_counts=True)
    places = sizes.cumsum(0) - (sizes + 1) / 2
    return places[group] / max(1, len(values) - 1)


def _block_numbers(assembly: Assembly, candidates: torch.Tensor, size: int) -> torch.Tensor:
    starts = torch.tensor([start for start, _ in assembly.chunks], device=candidates.device)
    chunk = torch.searchsorted(starts, candidates, right=True) - 1
    within = (candidates - starts[chunk]) // size
    _, numbers = torch.unique(
        chunk * (int(within.max() if len(within) else 0) + 1) + within, return_inverse=True
    )
    return numbers
