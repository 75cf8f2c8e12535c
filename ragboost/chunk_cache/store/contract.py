"""The interface of chunk KV stores: in memory, tiered, or remote."""

from collections.abc import Sequence
from typing import Protocol

from ragboost.chunk_cache.store.chunk import ChunkKV


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
        """Return True if the KV is stored, without marking it as used."""
        ...

    def get(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used. None if it is not stored, or if loading it would take
        longer than computing it. Called between two engine steps, which wait for it."""
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

    def discard(self, key: str) -> None:
        """Remove KV. Removing an absent key does nothing."""
        ...

    def prefetch(self, keys: Sequence[str]) -> None:
        """Announce that a waiting request will `get` these keys soon. Returns immediately; a store
        with a fast `get` does nothing."""
        ...

    def clear(self) -> None: ...

    def close(self) -> None:
        """Flush persistent KV and stop background threads. No other method may follow."""
        ...
