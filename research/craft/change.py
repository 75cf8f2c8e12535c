"""Compare the KV of a chunk between two variants: tokens that depend on the context differ."""

from collections.abc import Sequence

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.assemble import ChunkSpan, TokenSource, assemble
from ragboost.chunk_cache.store.chunk import ChunkKV


@torch.no_grad()  # type: ignore[untyped-decorator]
def kv_change(adapter: ModelAdapter, kv: ChunkKV, other: ChunkKV) -> torch.Tensor:
    """Return the squared difference of each token's keys and values, relative to their mean squared
    norm, summed over layers, (tokens,). The keys are rotated to the same positions first."""
    length = len(kv.tokens)
    total = torch.zeros(length, device=adapter.device)
    layers = [
        assemble(adapter, [ChunkSpan(0, TokenSource.APPROXIMATE, each)], length=length).layers
        for each in (kv, other)
    ]
    for mine, yours in zip(*layers, strict=True):
        total += relative_change([mine.keys, mine.values], [yours.keys, yours.values])
    return total


def relative_change(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squared change of each token's vectors relative to the mean squared norm of the
    old ones, summed over tensors of (1, heads, tokens, head_dim), (tokens,)."""
    total = torch.zeros(old[0].shape[2], device=old[0].device)
    for before, after in zip(old, new, strict=True):
        size = before.float().square().sum((0, 1, 3)).mean().clamp_min(1e-12)
        total += (after.float() - before.float()).square().sum((0, 1, 3)) / size
    return total
