"""Attention of scattered query rows: back ends by name, loaded when asked for.

Every back end is exact: a row at position p sees keys at positions <= p, whatever its place among
the rows. Compacting the rows and applying a causal mask to what is left would show them the future.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from ragboost.errors import ChunkCacheError

if TYPE_CHECKING:
    from ragboost.chunk_cache.model.attention.base import AttentionBackend

BACKENDS = {
    "loop": "LoopAttention",
    "dense": "DenseAttention",
    "tiled": "TiledAttention",
    "flex": "FlexAttention",
    "varlen": "VarlenAttention",
}


def make_backend(name: str) -> "AttentionBackend":
    """Return the back end of this name.

    Raises:
        ChunkCacheError: the name is not one of `BACKENDS`.
    """
    if name not in BACKENDS:
        raise ChunkCacheError(
            f"unknown attention back end {name!r}; known are {', '.join(BACKENDS)}"
        )
    module = import_module(f"ragboost.chunk_cache.model.attention.{name}")
    backend: AttentionBackend = getattr(module, BACKENDS[name])()
    return backend
