"""An in-memory LRU store of chunk KV. Knows keys and sizes; does not know models."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from ragboost.chunk_cache.store.chunk import ChunkKV, check_sizes
from ragboost.errors import ChunkCacheError


class ChunkStore:
    """A `KVStore` in memory that evicts the least recently used chunks.

    Args:
        capacity_bytes: maximum bytes of stored KV.

    Attributes:
        size_bytes: bytes of the stored KV.
        num_hits, num_misses: outcomes of `get`.
    """

    def __init__(self, *, capacity_bytes: int = 1 << 30) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self.version = 0
        self.num_hits = 0
        self.num_misses = 0
        self._chunks: OrderedDict[str, ChunkKV] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._chunks)

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def get(self, key: str) -> ChunkKV | None:
        with self._lock:
            chunk = self._chunks.get(key)
            if chunk is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
            self._chunks.move_to_end(key)
            return chunk

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV, evicting as needed. Returns False if it exceeds the capacity by itself."""
        with self._lock:
            if key in self._chunks:
                self._chunks.move_to_end(key)
                return True
            if chunk.size_bytes > self.capacity_bytes:
                return False
            while self.size_bytes + chunk.size_bytes > self.capacity_bytes:
                _, oldest = self._chunks.popitem(last=False)
                self.size_bytes -= oldest.size_bytes
            self._chunks[key] = chunk
            self.size_bytes += chunk.size_bytes
            self.version += 1
            return True

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Replace the KV of an existing key unless the new KV is larger."""
        with self._lock:
            old = self._chunks.get(key)
            if old is not None and chunk.size_bytes <= old.size_bytes:
                self._chunks[key] = chunk
                self.size_bytes += chunk.size_bytes - old.size_bytes
                self.version += 1

    def discard(self, key: str) -> None:
        with self._lock:
            chunk = self._chunks.pop(key, None)
            if chunk is not None:
                self.size_bytes -= chunk.size_bytes
                self.version += 1

    def prefetch(self, keys: Sequence[str]) -> None:
        """Do nothing: all KV is in memory."""

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()
            self.size_bytes = 0
            self.version += 1

    def close(self) -> None:
        """Do nothing: the KV is not persistent."""

    def check_integrity(self) -> None:
        """Check the recorded size.

        Raises:
            ChunkCacheError: it is wrong; the message has the numbers.
        """
        with self._lock:
            check_sizes(self._chunks.values(), self.size_bytes, capacity_bytes=self.capacity_bytes)
