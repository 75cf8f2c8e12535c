"""Attention of scattered query rows: backends by name, imported on demand. All are exact: a row at
position p sees keys at positions <= p, whatever its index among the rows."""

from importlib import import_module
from typing import TYPE_CHECKING

from ragboost.errors import ChunkCacheError

if TYPE_CHECKING:
    from ragboost.chunk_cache.model.attention.backend import AttentionBackend

BACKENDS = {
    "dense": "DenseAttention",
    "tiled": "TiledAttention",
    "flex": "FlexAttention",
    "varlen": "VarlenAttention",
}


def make_backend(name: str) -> "AttentionBackend":
    if name not in BACKENDS:
        raise ChunkCacheError(
            f"unknown attention backend {name!r}; known are {', '.join(BACKENDS)}"
        )
    module = import_module(f"ragboost.chunk_cache.model.attention.{name}")
    backend: AttentionBackend = getattr(module, BACKENDS[name])()
    return backend
