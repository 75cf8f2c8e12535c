"""Take the KV of a chunk out of a prompt that was just computed, for requests to come.

Knows caches and positions. Does not know what it is kept for.
"""

from collections.abc import Sequence

from ragboost.chunk_cache.kv.store import ChunkKV, tokens_digest
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.prefill import Prefill


def kv_of(
    adapter: ModelAdapter,
    tokens: Sequence[int],
    result: Prefill,
    *,
    span: tuple[int, int],
    num_exact: int,
) -> ChunkKV:
    """Return a copy of a part of a prompt's KV, with the place it was computed at.

    Args:
        adapter: the model.
        tokens: ids of the whole prompt.
        result: what its prefill gave; the cache is whole.
        span: positions (start, stop) of the part.
        num_exact: leading tokens of the prompt whose KV is what an ordinary forward gives.
    """
    start, stop = span
    return ChunkKV(
        tuple(tokens[start:stop]),
        base=start,
        layers=tuple(
            (layer.keys[:, :, start:stop].clone(), layer.values[:, :, start:stop].clone())
            for layer in result.cache.layers
        ),
        regime=adapter.regime(len(tokens)),
        length=len(tokens),
        exact_after=tokens_digest(tokens[:start]) if stop <= num_exact else None,
    )
