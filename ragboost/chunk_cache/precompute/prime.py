"""Compute a chunk after its neighbours (FusionRAG eq. 10), and measure how that changes its KV."""

from collections.abc import Sequence
from dataclasses import replace

from ragboost.chunk_cache.core.measure import ChunkMeasure
from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.store.chunk import ChunkKV


def prime(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> ChunkKV:
    """Return a chunk's KV, computed after the system prompt and the plain KV of its neighbours.

    The neighbours follow the system prompt one after the other without seeing each other. The
    returned KV is not stored; missing plain KV is computed and stored.

    Args:
        neighbours: token ids of each, the most similar last, next to the chunk; none: plain KV.

    Returns:
        The KV with the `influence` of the neighbours, and with `sensitivity`: the squared distance
        of each token's keys from the plain ones, relative to their mean squared norm, summed over
        layers.
    """
    own = reuse.plain(system, chunk)
    plain = [reuse.plain(system, tokens) for tokens in neighbours if tokens]
    if not plain:
        return own
    filled, kv = reuse.compute_behind(system, plain, own)
    assert filled.measure is not None, "asked for"
    return replace(kv, sensitivity=filled.measure.sensitivity, influence=filled.measure.influence)


def measure(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> None:
    """Add the measurements of `prime` to a chunk's stored plain KV, for policies that use them."""
    kv = prime(reuse, system, chunk, neighbours=neighbours)
    if kv.sensitivity is not None and kv.influence is not None:
        measures = ChunkMeasure(kv.sensitivity, kv.influence)
        reuse.library.measure(reuse.library.key(chunk), measures)
