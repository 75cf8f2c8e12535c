"""A place of chunk KV; host memory, bounded in bytes, which does not know where KV comes from."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from ragboost.chunk_cache.eviction import Heat, Use
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import PUBLIC, owner_of, owner_prefix
from ragboost.errors import ChunkCacheError

PIN_S = 60.0
"""Seconds for which KV that was loaded for a waiting request stays pinned."""
_ASSUMED_S_PER_TOKEN = 1e-3
_PUBLIC = owner_prefix(PUBLIC)


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


class MemoryTier:
    """A bounded map from keys to KV; not thread-safe. `on_evict` is called after the
    KV for which another had to go is stored."""

    def __init__(
        self,
        *,
        capacity_bytes: int,
        clock: Callable[[], float],
        on_evict: Callable[[str, ChunkKV], None],
    ) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.capacity_bytes = capacity_bytes
        self.size_bytes = 0
        self.version = 0  # number of changes
        self.num_evicted = 0
        self.kept_bytes = Counter[str]()  # by owner, of KV that is never evicted
        self._kept: dict[str, dict[str, None]] = {}  # its keys by owner, oldest first
        self._policy, self._clock, self._on_evict = Heat(), clock, on_evict
        self._chunks: dict[str, ChunkKV] = {}
        self._pinned_until: dict[str, float] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def items(self) -> list[tuple[str, ChunkKV]]:
        return list(self._chunks.items())

    def keep(self, key: str) -> bool:
        """Never evict KV; return False if it is not here, or half the capacity is kept. Then the
        owner with the most gives up its oldest, unless it would have less than this key's owner;
        what is public nobody displaces."""
        chunk, owner = self._chunks.get(key), owner_of(key)
        if chunk is None or self.is_kept(key):
            return chunk is not None
        own_bytes = self.kept_bytes[owner] + chunk.size_bytes
        if self.kept_bytes.total() + chunk.size_bytes > self.capacity_bytes // 2:
            released = self._displaced(key, chunk.size_bytes, own_bytes=own_bytes)
            if released is None:
                return False
            for other in released:
                self.release(other)
        self._kept.setdefault(owner, {})[key] = None
        self.kept_bytes[owner] = own_bytes
        return True

    def _displaced(self, key: str, num_bytes: int, *, own_bytes: int) -> list[str] | None:
        """Return the keys that give way to this one; None if there is no room for it."""
        released, left = list[str](), self.kept_bytes.copy()
        oldest = {each: iter(keys) for each, keys in self._kept.items() if each != _PUBLIC}
        while left.total() + num_bytes > self.capacity_bytes // 2:
            most = max(oldest, key=left.__getitem__, default=owner_of(key))
            released.append(next(oldest.get(most, iter(())), key))
            left[most] -= self._chunks[released[-1]].size_bytes
            if left[most] < own_bytes:
                return None
        return released

    def release(self, key: str) -> None:
        owner = owner_of(key)
        if self.is_kept(key):
            del self._kept[owner][key]
            self.kept_bytes[owner] -= self._chunks[key].size_bytes
        if not self._kept.get(owner, True):
            del self._kept[owner], self.kept_bytes[owner]

    def is_kept(self, key: str) -> bool:
        return key in self._kept.get(owner_of(key), ())

    def peek(self, key: str) -> ChunkKV | None:
        return self._chunks.get(key)

    def load(self, key: str) -> ChunkKV | None:
        """Return KV, mark it as used, and unpin it."""
        chunk = self._chunks.get(key)
        if chunk is not None:
            self._pinned_until.pop(key, None)
            self._policy.used(key, self._use(chunk, is_hit=True))
        return chunk

    def save(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> bool:
        """Store KV, in place of that of the key; return False if it does not fit."""
        old_size = self._chunks[key].size_bytes if key in self._chunks else 0
        victims = self._victims(chunk.size_bytes - old_size, keep=key)
        if victims is None:
            return False
        evicted = [(other, self._chunks[other]) for other in victims]
        self.num_evicted += len(victims)
        for other in victims:
            self.remove(other)
        if key not in self._chunks:
            self._policy.used(key, self._use(chunk, is_hit=False))
        self._chunks[key] = chunk
        self.version += 1
        self.size_bytes += chunk.size_bytes - old_size
        if self.is_kept(key):
            self.kept_bytes[owner_of(key)] += chunk.size_bytes - old_size
        if is_pinned:
            self._pinned_until[key] = self._clock() + PIN_S
        for other, displaced in evicted:
            self._on_evict(other, displaced)
        return True

    def remove(self, key: str) -> None:
        self.release(key)
        chunk = self._chunks.pop(key, None)
        if chunk is not None:
            self.version += 1
            self.size_bytes -= chunk.size_bytes
            self._pinned_until.pop(key, None)
            self._policy.evicted(key)

    def clear(self) -> None:
        for key in list(self._chunks):
            self.remove(key)

    def close(self) -> None: ...

    def _victims(self, size: int, *, keep: str) -> list[str] | None:
        """Return the keys to evict for `size` bytes; None if pinned KV prevents it."""
        missing = self.size_bytes + size - self.capacity_bytes
        if missing <= 0:
            return []
        now = self._clock()
        self._pinned_until = {k: until for k, until in self._pinned_until.items() if until > now}
        victims = []
        stay = self._pinned_until.keys() | {keep}
        free = [key for key in self._chunks if key not in stay and not self.is_kept(key)]
        for key in sorted(free, key=self._policy.priority):
            victims.append(key)
            missing -= self._chunks[key].size_bytes
            if missing <= 0:
                return victims
        return None

    def _use(self, chunk: ChunkKV, *, is_hit: bool) -> Use:
        seconds = chunk.compute_s
        if seconds is None:
            seconds = len(chunk.tokens) * _ASSUMED_S_PER_TOKEN
        return Use(self._clock(), chunk.size_bytes, seconds, is_hit)
