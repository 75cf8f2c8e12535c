"""The interfaces of chunk KV stores: one place, and the store of all places that engines see."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ragboost.chunk_cache.store.chunk import ChunkKV


class TierStats(NamedTuple):
    """Contents of one place, and its counts since the start."""

    name: str  # accelerator, memory, disk or remote
    entries: int
    size_bytes: int | None = None  # None: the place does not say
    capacity_bytes: int | None = None
    evictions: int | None = None
    loads: Mapping[str, int] = {}  # chunks asked of it, by outcome; empty for memory
    load_seconds: float = 0.0


class ChunkTier(Protocol):
    """One place that keeps chunk KV under keys: memory, a directory, or a remote store.

    Four verbs. Beyond memory each may take any time, so that only background threads call it; such
    a place is safe to use from several of them. The verbs of a remote store may raise
    `StoreUnavailableError`.
    """

    def __contains__(self, key: str) -> bool:
        """Return True if the KV seems to be there."""
        ...

    def load(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used; None if it is absent or damaged."""
        ...

    def save(self, key: str, chunk: ChunkKV) -> bool:
        """Keep KV, replacing that of the same key, and evicting other KV as needed. Return False
        if it does not fit."""
        ...

    def remove(self, key: str) -> None:
        """Remove KV. Removing an absent key does nothing."""
        ...

    def clear(self) -> None:
        """Remove all KV, so that nothing stored before is found afterwards."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


class KVStore(Protocol):
    """A bounded map from chunk keys to KV, safe to use from several threads.

    Stored tensors are shared between requests: nobody writes to them, and the result of `get` stays
    valid after an eviction.
    """

    @property
    def version(self) -> int:
        """A number that changes whenever KV is added, replaced or removed."""
        ...

    def __contains__(self, key: str) -> bool:
        """Return True if the KV is known to be stored, without marking it as used."""
        ...

    def get(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used; None if it is not stored. Engines call it between two
        steps, which wait for it: their stores look in memory only."""
        ...

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV, evicting other KV as needed. An existing key keeps its KV.

        Returns:
            False if the KV was not stored.
        """
        ...

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Replace the KV of an existing key; an absent key stays absent."""
        ...

    def keep(self, key: str) -> bool:
        """Let KV in memory never be evicted from there; return False if it is not in memory, or
        there is too much of that kind."""
        ...

    def is_kept(self, key: str) -> bool:
        """Return True if KV is in memory and never evicted."""
        ...

    def discard(self, key: str) -> None:
        """Remove KV. Removing an absent key does nothing."""
        ...

    def prefetch(self, chunks: Mapping[str, int]) -> None:
        """Announce that a waiting request will `get` these keys soon, each with the number of its
        tokens. Returns immediately; a store with a fast `get` does nothing."""
        ...

    def is_loading(self, keys: Sequence[str]) -> bool:
        """Return True while announced KV is on its way and waiting for it is expected to be faster
        than computing it. Returns immediately."""
        ...

    def clear(self) -> None:
        """Remove all KV: nothing that was stored before is found afterwards."""
        ...

    def close(self) -> None:
        """Write what is only in memory, as far as the places answer, and stop background threads.
        No other method may follow."""
        ...
