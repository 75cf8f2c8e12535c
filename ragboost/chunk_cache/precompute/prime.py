"""Compute a chunk after its neighbours (FusionRAG eq. 10), and measure what that changes.

Knows token ids and stored KV. Does not know how neighbours were found.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ragboost.chunk_cache.assemble import TokenSource
from ragboost.chunk_cache.craft.change import relative_change
from ragboost.chunk_cache.craft.gather import Gather
from ragboost.chunk_cache.kv.store import ChunkKV, tokens_digest
from ragboost.chunk_cache.recompute import recompute
from ragboost.chunk_cache.reuse import ChunkReuse


@torch.no_grad()  # type: ignore[untyped-decorator]
def prime(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> ChunkKV:
    """Return a chunk's KV, computed after the system prompt and the plain KV of its neighbours.

    The neighbours stand one after the other as if they followed the system prompt; they have not
    seen each other. The KV keeps the place it was computed at and is turned where it is used. It is
    not stored. Plain KV that is needed and missing is computed and stored.

    Args:
        reuse: the model and its store.
        system, chunk: token ids; the chunk has at least one.
        neighbours: ids of each; the most similar last, next to the chunk. None: plain KV.

    Returns:
        The KV with `influence` of the neighbours, and with `sensitivity`: how far each token's keys
        are from the plain ones, as a share of their mean size, summed over layers.
    """
    own = reuse.chunks.plain(system, chunk)
    before = [tokens for tokens in neighbours if tokens]
    if not before:
        return own
    plain: list[ChunkKV | None] = [reuse.chunks.plain(system, tokens) for tokens in before]
    assembly = reuse.assemble(system, [*before, chunk], [chunk[-1]], stored=[*plain, own])
    start, stop = assembly.chunks[-1]
    old = [layer.keys[:, :, start:stop].clone() for layer in assembly.cache.layers]
    gather = Gather(assembly.tokens, assembly.chunks, watched=[len(before)])
    rows = torch.arange(start, stop, device=reuse.adapter.device)
    recompute(reuse.adapter, assembly, selected=rows, backend=reuse.backend, observe=gather)
    is_exact = bool((assembly.source[:start] == TokenSource.EXACT).all())
    return ChunkKV(
        tuple(chunk),
        base=start,
        layers=tuple(
            (layer.keys[:, :, start:stop].clone(), layer.values[:, :, start:stop].clone())
            for layer in assembly.cache.layers
        ),
        regime=reuse.adapter.regime(len(assembly.tokens)),
        length=len(assembly.tokens),
        sensitivity=relative_change(
            old, [layer.keys[:, :, start:stop] for layer in assembly.cache.layers]
        ),
        influence=gather.influences()[len(before)],
        exact_after=tokens_digest(assembly.tokens[:start]) if is_exact else None,
    )


def measure(
    reuse: ChunkReuse,
    system: Sequence[int],
    chunk: Sequence[int],
    *,
    neighbours: Sequence[Sequence[int]],
) -> None:
    """Add to a chunk's plain KV in the store what `prime` measures, for policies that choose by it.

    The KV itself stays plain, so its influence names no context: nothing of one is in it.
    """
    primed = prime(reuse, system, chunk, neighbours=neighbours)
    plain = reuse.chunks.plain(system, chunk)
    influence = primed.influence and replace(primed.influence, context=(), inter=())
    reuse.store.replace(
        reuse.chunks.key(system, chunk),
        replace(plain, sensitivity=primed.sensitivity, influence=influence),
    )
