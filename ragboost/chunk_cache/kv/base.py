"""The interface of the places where chunk KV is kept: one in memory, tiers, remote ones.

Knows keys and KV. Does not know models or requests.
"""

from collections.abc import Sequence
from typing import Protocol

from ragboost.chunk_cache.kv.store import ChunkKV


class KVStore(Protocol):
    """A bounded map from chunk keys to KV, safe to use from several threads.

    Stored tensors are shared between requests: nobody writes to them, and what `get` has returned
    stays valid whatever happens to the store.
    """

    def get(self, key: str) -> ChunkKV | None:
        """Return the KV and mark it as used; None where it is not there, or not in time: the caller
        computes then. Called between two steps of an engine, which wait for it."""
        ...

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Keep KV, dropping other KV as needed. False: it was not kept. A key that is there already
        keeps its KV."""
        ...

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Put other KV in the place of what is there; a key that is not there stays absent."""
        ...

    def discard(self, key: str) -> None:
        """Drop KV that is not wanted any more; a key that is not there does nothing."""
        ...

    def prefetch(self, keys: Sequence[str]) -> None:
        """Learn that a request which waits for its turn will `get` these keys soon. Returns at
        once; a store whose `get` is fast does nothing."""
        ...

    def clear(self) -> None:
        """Drop everything."""
        ...

    def close(self) -> None:
        """Keep what is to be kept beyond this process, and end what runs in the background. Nothing
        else is called afterwards."""
        ...
