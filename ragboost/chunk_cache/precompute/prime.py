"""Compute a chunk after its neighbours (FusionRAG eq. 10), and measure how that changes its KV."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.assemble import TokenSource, extract
from ragboost.chunk_cache.model.change import relative_change
from ragboost.chunk_cache.model.recompute import recompute
from ragboost.chunk_cache.selection.influence_observer import InfluenceObserver
from ragboost.chunk_cache.store.chunk import ChunkKV


@torch.no_grad()  # type: ignore[untyped-decorator]
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
        reuse: the model and its store.
        system, chunk: token ids; the chunk has at least one.
        neighbours: token ids of each, the most similar last, next to the chunk; none: plain KV.

    Returns:
        The KV with the `influence` of the neighbours, and with `sensitivity`: the squared distance
        of each token's keys from the plain ones, relative to their mean squared norm, summed over
        layers.
    """
    own = reuse.chunks.plain(system, chunk)
    before = [tokens for tokens in neighbours if tokens]
    if not before:
        return own
    plain: list[ChunkKV | None] = [reuse.chunks.plain(system, tokens) for tokens in before]
    assembly = reuse.assemble(system, [*before, chunk], [chunk[-1]], stored=[*plain, own])
    start, stop = assembly.chunks[-1]
    old = [layer.keys[:, :, start:stop].clone() for layer in assembly.cache.layers]
    observer = InfluenceObserver(assembly.tokens, assembly.chunks, watched=[len(before)])
    rows = torch.arange(start, stop, device=reuse.adapter.device)
    recompute(reuse.adapter, assembly, selected=rows, backend=reuse.backend, observe=observer)
    kv = extract(
        reuse.adapter,
        assembly.cache,
        assembly.tokens,
        start=start,
        stop=stop,
        is_exact=bool((assembly.source[:start] == TokenSource.EXACT).all()),
    )
    return replace(
        kv,
        sensitivity=relative_change(old, [keys for keys, _ in kv.layers]),
        influence=observer.influences()[len(before)],
    )


def measure(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> None:
    """Add the measurements of `prime` to a chunk's stored plain KV, for policies that use them.

    The KV stays plain, so its influence names no context.
    """
    primed = prime(reuse, system, chunk, neighbours=neighbours)
    plain = reuse.chunks.plain(system, chunk)
    influence = primed.influence and replace(primed.influence, context=(), inter=())
    reuse.store.replace(
        reuse.chunks.key(system, chunk),
        replace(plain, sensitivity=primed.sensitivity, influence=influence),
    )
