"""One place of chunk KV, and its state."""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from ragboost.chunk_cache.store.chunk import ChunkKV


class TierStats(NamedTuple):
    name: str  # memory, disk or remote
    entries: int
    size_bytes: int | None = None  # None: the place does not say
    capacity_bytes: int | None = None
    evictions: int | None = None
    loads: Mapping[str, int] = {}  # chunks asked of it, by outcome; empty for memory
    load_seconds: float = 0.0


class ChunkTier(Protocol):
    """One place that keeps chunk KV under keys: memory, a directory, or a remote store. Beyond
    memory each verb may take any time or raise `StoreUnavailableError`."""

    def __contains__(self, key: str) -> bool: ...

    def load(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used; None if it is absent or damaged."""
        ...

    def save(self, key: str, chunk: ChunkKV) -> bool:
        """Keep KV, replacing that of the same key; return False if it does not fit."""
        ...

    def remove(self, key: str) -> None: ...

    def clear(self) -> None: ...

    def close(self) -> None: ...
