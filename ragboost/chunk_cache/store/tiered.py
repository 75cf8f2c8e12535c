"""Chunk KV in host memory, on disk and in a remote store, as one map. What is used often, or
dear for its size, stays in memory; all is written elsewhere in the background and comes back when a
request needs it."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from ragboost.chunk_cache.store.background import WRITE_BEHIND_BYTES, BackgroundTier
from ragboost.chunk_cache.store.chunk import ChunkKV, Origin
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.load_table import LoadTable
from ragboost.chunk_cache.store.memory import ChunkTier, MemoryTier, TierStats
from ragboost.chunk_cache.store.workers import Speeds

CLOSE_S = 30.0
"""Seconds that writing what is only in memory may take at the end; the rest is lost."""


class TieredStore:
    """A bounded map from chunk keys to KV, safe to use from several threads; processes may share a
    disk or a remote store. Without either, evicted KV is dropped. Nobody writes to stored tensors;
    the result of `get` stays valid after an eviction. If it `waits`, `get` waits until KV is
    loaded; in an engine nothing may wait: there `get` looks in memory, where `prefetch` brings
    KV."""

    takes_commands = True  # pins and evictions reach all places

    def __init__(
        self,
        *,
        host_bytes: int = 1 << 30,
        disk: DiskTier | None = None,
        remote: ChunkTier | None = None,
        speeds: Speeds | None = None,
        write_bytes: int = WRITE_BEHIND_BYTES,
        waits: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.disk = disk
        self.knows_all = remote is None  # what is not known to be stored need not be looked for
        self.speeds = speeds or Speeds()
        self._waits, self._clock = waits, clock
        self.memory = MemoryTier(capacity_bytes=host_bytes, clock=clock, on_evict=self._demote)
        self._lock = threading.RLock()
        self._loads = LoadTable(self._lock, keep=self._keep_loaded, clock=clock)
        self._tiers = self._loads.tiers
        self._to_pin: set[str] = set()  # keys, each with a load on its way
        places: list[tuple[ChunkTier | None, str, Speeds, Iterable[str]]] = [
            (disk, "disk", self.speeds, disk.keys() if disk else ()),
            (remote, "remote", Speeds(), ()),
        ]
        for place, name, own_speeds, known in places:
            if place is not None:
                tier = BackgroundTier(
                    place,
                    name=name,
                    known=known,
                    write_bytes=write_bytes,
                    speeds=own_speeds,
                    done=partial(self._loads.done, len(self._tiers)),
                    find=self._peek,
                    clock=clock,
                )
                self._tiers.append(tier)

    def __contains__(self, key: str) -> bool:
        """Return True if KV is known to be stored; that is no use of it."""
        return key in self.memory or any(key in tier for tier in self._tiers)

    @property
    def version(self) -> int:
        """Number that changes whenever KV is added, replaced or removed."""
        return self.memory.version + sum(tier.version for tier in self._tiers)

    def get(self, key: str) -> ChunkKV | None:
        """Return KV and mark it as used."""
        with self._lock:
            chunk = self._from_memory(key)
        return self._loads.load(key) if chunk is None and self._waits else chunk

    def origin(self, key: str) -> Origin | None:
        """Return what stored KV has seen, the least where that is not known; None if none is known
        to be stored. That is no use of it."""
        if (chunk := self._peek(key)) is not None:
            return chunk.origin
        found = (tier.origin(key) for tier in self._tiers)
        return next((origin for origin in found if origin is not None), None)

    def absence(self, keys: Sequence[str]) -> str:
        """Return why none of these keys was found in memory: absent, loading or not_loaded."""
        if any(key in self._loads for key in keys):
            return "loading"
        return "not_loaded" if any(key in self for key in keys) else "absent"

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV, unless the key has some, and note the speed of computing it; return False if
        there is no room. A broken file is replaced."""
        if chunk.compute_s is not None:
            for tier in self._tiers:
                tier.speeds.computed(len(chunk.tokens), chunk.compute_s)
        with self._lock:
            self._loads.forget_miss(key)
            if self._from_memory(key) is not None:
                return True
            is_kept = self.memory.save(key, chunk)
        written = [tier.write(key, chunk) for tier in self._tiers]
        return is_kept or any(written)

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """Replace the KV of an existing key everywhere; an absent key stays absent."""
        if key not in self:
            return
        with self._lock:
            if not self.memory.save(key, chunk):
                self.memory.remove(key)
        for tier in self._tiers:
            tier.write(key, chunk, is_new=True)

    def discard(self, key: str) -> None:
        self.forget([key])
        for tier in self._tiers:
            tier.remove(key)

    def forget(self, keys: Sequence[str] | None = None) -> None:
        """Remove KV from memory only; None: all of it."""
        with self._lock:
            self._loads.cancel(keys)
            for key in [key for key, _ in self.memory.items()] if keys is None else keys:
                self.memory.remove(key)
            self._to_pin.difference_update([*self._to_pin] if keys is None else keys)

    def prefetch(self, chunks: Mapping[str, int]) -> None:
        """Start loading what is not in memory, by key with its tokens; until used it stays, `PIN_S`
        at most."""
        with self._lock:
            self._loads.start(
                {key: count for key, count in chunks.items() if not self._is_in_memory(key)}
            )

    def is_loading(self, keys: Sequence[str]) -> bool:
        """Return True while one is on its way, and sooner there than computed."""
        return self._loads.is_awaited(keys)

    def is_on_its_way(self, key: str) -> bool:
        return key in self._loads

    def wait_for_load(self, *, timeout_s: float) -> None:
        self._loads.wait(timeout_s=timeout_s)

    def clear(self) -> None:
        with self._lock:  # no load may begin in between
            self.forget()
            for tier in self._tiers:
                tier.clear()

    def keys(self, prefix: str) -> set[str]:
        with self._lock:
            keys = [key for key, _ in self.memory.items()]
        for tier in self._tiers:
            keys += tier.keys()
        return {key for key in keys if key.startswith(prefix)}

    def places(self, key: str) -> list[str]:
        """Return where KV is, also where it is only to be removed from."""
        found = ["memory"] if key in self.memory else []
        return found + [tier.name for tier in self._tiers if tier.holds(key)]

    def stats(self) -> list[TierStats]:
        """Return what each place holds and has done, without asking it."""
        with self._lock:
            own = self.memory
            found = TierStats(
                "memory", len(own), own.size_bytes, own.capacity_bytes, own.num_evicted
            )
        return [found, *(tier.stats() for tier in self._tiers)]

    def keep(self, key: str) -> bool:
        """Never evict KV from memory; return False if it is not there, or too much is kept."""
        with self._lock:
            return self.memory.keep(key)

    def pin(self, chunks: Mapping[str, int]) -> set[str]:
        """Keep chunks, by key with their tokens (0: unknown), loading those that are elsewhere;
        return the keys of those that are kept, or will be if they are found."""
        with self._lock:
            kept = {key for key in chunks if self.memory.keep(key)}
            far = [key for key in chunks if key not in self.memory and key in self]
            self._loads.start({key: chunks[key] for key in far})
            loading = {key for key in far if key in self._loads}
            self._to_pin |= loading
        return kept | loading

    def release(self, key: str) -> None:
        with self._lock:
            self._to_pin.discard(key)
            self.memory.release(key)

    def is_kept(self, key: str) -> bool:
        with self._lock:
            return self.memory.is_kept(key)

    def flush(self, *, until: float = math.inf) -> None:
        """Write all KV in memory elsewhere, as far as it fits and the places answer."""
        with self._lock:
            everything = self.memory.items()
        for tier in self._tiers:
            for key, chunk in everything:
                if key not in tier and not tier.write(key, chunk):
                    if not tier.drain(until=until):
                        break
                    tier.write(key, chunk)
            tier.drain(until=until)

    def close(self) -> None:
        """Write what is only in memory, as far as the places answer, and stop all threads."""
        until = self._clock() + CLOSE_S
        self.flush(until=until)
        for tier in self._tiers:
            tier.close(until=until)

    def _is_in_memory(self, key: str) -> bool:
        return key in self.memory or any(tier.unwritten(key) is not None for tier in self._tiers)

    def _peek(self, key: str) -> ChunkKV | None:
        with self._lock:
            return self.memory.peek(key)

    def _from_memory(self, key: str) -> ChunkKV | None:
        if (chunk := self.memory.load(key)) is not None:
            return chunk
        unwritten = (tier.unwritten(key) for tier in self._tiers)
        return next((chunk for chunk in unwritten if chunk is not None), None)

    def _demote(self, key: str, chunk: ChunkKV) -> None:
        for tier in self._tiers:
            if key not in tier:
                tier.write(key, chunk)

    def _keep_loaded(self, key: str, chunk: ChunkKV | None) -> bool:
        """Store a loaded chunk until its request uses it; return True if it is in memory."""
        is_there = key in self.memory
        if chunk is not None and not is_there:
            is_there = self.memory.save(key, chunk, is_pinned=True)
        if key in self._to_pin:
            self._to_pin.discard(key)
            self.memory.keep(key)
        return is_there
