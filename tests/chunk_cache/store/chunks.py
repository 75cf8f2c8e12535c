"""Small chunks to store, and a simulated full disk."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.influence import Influence


def make_chunk(
    seed: int = 0,
    *,
    num_tokens: int = 6,
    num_layers: int = 3,
    dtype: torch.dtype = torch.float32,
    compute_s: float | None = 0.01,
) -> ChunkKV:
    generator = torch.Generator().manual_seed(seed)
    layers = tuple(
        (
            torch.randn(1, 2, num_tokens, 4, generator=generator).to(dtype),
            torch.randn(1, 2, num_tokens, 8, generator=generator).to(dtype),
        )
        for _ in range(num_layers)
    )
    return ChunkKV(
        tokens=tuple(range(seed, seed + num_tokens)),
        base=3,
        layers=layers,
        regime="regime",
        length=3 + num_tokens,
        influence=Influence(("a", "b"), (0.5, 0.25), 1.5, 2.0, tuple(range(num_tokens))),
        exact_after="digest",
        compute_s=compute_s,
    )


def same(one: ChunkKV | None, other: ChunkKV | None) -> bool:
    """Return True if two chunks are equal bit by bit."""
    if one is None or other is None:
        return one is other
    fields = ("tokens", "base", "regime", "length", "influence", "exact_after", "compute_s")
    return (
        all(getattr(one, field) == getattr(other, field) for field in fields)
        and len(one.layers) == len(other.layers)
        and all(
            torch.equal(a, b) and a.dtype == b.dtype
            for mine, yours in zip(one.layers, other.layers, strict=True)
            for a, b in zip(mine, yours, strict=True)
        )
    )


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """Make the system refuse larger files, as a full disk or a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
