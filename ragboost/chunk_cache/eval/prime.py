"""Compute a chunk after its neighbours (FusionRAG eq. 10), and measure their influence."""

from collections.abc import Sequence
from dataclasses import replace

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.store.chunk import ChunkKV


def prime(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> ChunkKV:
    """Return a chunk's KV behind the system prompt and the plain KV of its neighbours, the most
    similar last, which do not see each other, with their `influence`. It is not stored; missing
    plain KV is."""
    own = reuse.plain(system, chunk)
    plain = [reuse.plain(system, tokens) for tokens in neighbours if tokens]
    if not plain:
        return own
    filled, kv = reuse.compute_behind(system, plain, own)
    return replace(kv, influence=filled.influence)


def measure(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> None:
    """Add the measurements of `prime` to a chunk's stored plain KV."""
    kv = prime(reuse, system, chunk, neighbours=neighbours)
    if kv.influence is not None:
        reuse.library.measure(reuse.library.key(chunk), kv.influence)
