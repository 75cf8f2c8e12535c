"""How far the KV of a chunk's tokens is apart in two versions, computed in two contexts: what a
context decides differs between them, what it does not is the same in both.

Knows stored KV. Does not know which versions there are.
"""

from collections.abc import Sequence

import torch

from ragboost.chunk_cache.assemble import ChunkSpan, TokenSource, assemble
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.model.adapter import ModelAdapter


@torch.no_grad()  # type: ignore[untyped-decorator]
def kv_change(adapter: ModelAdapter, one: ChunkKV, other: ChunkKV) -> torch.Tensor:
    """Return the squared difference of each token's keys and values, each as a share of their mean
    size, summed over layers, (tokens,).

    The keys are turned to the same place first.

    Raises:
        ChunkLostError: KV that was still loading cannot be read.
    """
    length = len(one.tokens)
    total = torch.zeros(length, device=adapter.device)
    layers = [
        assemble(adapter, [ChunkSpan(0, length, TokenSource.APPROXIMATE, kv)], length=length).layers
        for kv in (one, other)
    ]
    for mine, yours in zip(*layers, strict=True):
        total += relative_change([mine.keys, mine.values], [yours.keys, yours.values])
    return total


def relative_change(old: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the squared change of each token's vectors, each tensor's as a share of the mean size
    of the old ones, summed over tensors, (tokens,).

    Args:
        old, new: (1, heads, tokens, head_dim) each.
    """
    total = torch.zeros(old[0].shape[2], device=old[0].device)
    for before, after in zip(old, new, strict=True):
        size = before.float().square().sum((0, 1, 3)).mean().clamp_min(1e-12)
        total += (after.float() - before.float()).square().sum((0, 1, 3)) / size
    return total
