"""The interfaces of chunk KV stores: one place, and the store of all places that engines see."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ragboost.chunk_cache.store.chunk import ChunkKV, Origin


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


class KVStore(Protocol):
    """A bounded map from chunk keys to KV, safe to use from several threads. Nobody writes to
    stored tensors; the result of `get` stays valid after an eviction."""

    @property
    def version(self) -> int:
        """Changes whenever KV is added, replaced or removed."""
        ...

    @property
    def knows_all(self) -> bool:
        """True if what is not known to be stored need not be looked for beside what is."""
        ...

    def __contains__(self, key: str) -> bool:
        """Return True if the KV is known to be stored; that is no use of it."""
        ...

    def get(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used. Engines wait for it: theirs look in memory only."""
        ...

    def origin(self, key: str) -> Origin | None:
        """Return what the stored KV has seen, the least where that is not known; None if none is
        known to be stored. That is no use of it."""
        ...

    def absence(self, keys: Sequence[str]) -> str:
        """Return why none of these keys was found in memory: absent, loading or not_loaded."""
        ...

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV, unless the key has some; return False if there is no room."""
        ...

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Replace the KV of an existing key everywhere; an absent key stays absent."""
        ...

    def keep(self, key: str) -> bool:
        """Never evict KV from memory; return False if it is not there, or too much is kept."""
        ...

    def is_kept(self, key: str) -> bool: ...

    def discard(self, key: str) -> None: ...

    def prefetch(self, chunks: Mapping[str, int]) -> None:
        """Begin to load chunks that a request will `get`, by key with their tokens."""
        ...

    def is_loading(self, keys: Sequence[str]) -> bool:
        """Return True while announced KV is on its way, and sooner there than computed."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None:
        """Write what is only in memory, as far as the places answer, and stop all threads."""
        ...
