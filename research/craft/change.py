"""Compare the KV of a chunk between two variants: tokens that depend on the context differ."""

import torch

from ragboost.chunk_cache.core.measure import relative_change
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
