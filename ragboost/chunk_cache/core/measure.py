"""Measure how a stored chunk depends on other chunks, computed behind them: what Cache-Craft and
`hybrid-offline` need. Does not know stores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from ragboost.chunk_cache.model.assemble import Assembly
from ragboost.chunk_cache.model.attention.backend import AttentionBackend
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.reusable_model import ReusableModel
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import Influence


@dataclass(frozen=True, slots=True)
class ChunkMeasure:
    sensitivity: torch.Tensor  # dependence of each token's keys on the neighbours, (tokens,)
    influence: Influence  # attention of its tokens to them

    def added_to(self, kv: ChunkKV) -> ChunkKV:
        """Return the chunk's KV with these measurements, whose context it was computed without."""
        influence = replace(self.influence, context=(), inter=())
        return replace(kv, sensitivity=self.sensitivity, influence=influence)


def measure_last_chunk(
    model: ReusableModel, assembly: Assembly, *, backend: AttentionBackend | None
) -> ChunkMeasure:
    """Compute the last chunk over the KV of all before it, in place of its own, and compare
    (Cache-Craft eq. 9, 10; FusionRAG eq. 10)."""
    number = len(assembly.chunks) - 1
    start, stop = assembly.chunks[number]
    layers = assembly.cache.layers
    old = [layer.keys[:, :, start:stop].clone() for layer in layers]
    observer = InfluenceObserver(assembly.tokens, assembly.chunks, watched=[number])
    rows = torch.arange(start, stop, device=model.device)
    plan = ForwardPlan(rows, backend=backend, observe=observer)
    model.forward(assembly.tokens[start:stop], assembly.cache, plan=plan)
    change = relative_change(old, [layer.keys[:, :, start:stop] for layer in layers])
    return ChunkMeasure(change.cpu(), observer.influences()[number])


def relative_change(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squared change of each token's vectors relative to the mean squared norm of the
    old ones, summed over tensors of (1, heads, tokens, head_dim), (tokens,)."""
    total = torch.zeros(old[0].shape[2], device=old[0].device)
    for before, after in zip(old, new, strict=True):
        size = before.float().square().sum((0, 1, 3)).mean().clamp_min(1e-12)
        total += (after.float() - before.float()).square().sum((0, 1, 3)) / size
    return total


def largest_error(got: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> float:
    errors = [
        (tensor.float() - other.float()).abs().max() / other.float().abs().max()
        for tensor, other in zip(got, expected, strict=True)
    ]
    return float(torch.stack(errors).max())  # not a number if one is
