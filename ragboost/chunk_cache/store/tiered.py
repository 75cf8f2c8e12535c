"""Chunk KV on an accelerator, in host memory and on disk, behind the interface `KVStore`.

KV that is used often, or is expensive to compute for its size, stays in fast memory; other KV moves
down to the next tier, and back up when a request needs it.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ragboost.chunk_cache.eviction.heat import Heat
from ragboost.chunk_cache.eviction.policy import EvictionPolicy
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.loader import ChunkLoad, Loader
from ragboost.chunk_cache.store.memory import Evicted, MemoryTier
from ragboost.chunk_cache.store.speeds import Speeds

logger = logging.getLogger(__name__)

WRITE_BEHIND_BYTES = 1 << 28
"""Maximum bytes of KV queued for writing; KV beyond it is written when it is evicted from memory,
or by `flush`."""


class TieredStore:
    """A `KVStore` of up to three tiers. Safe to use from several threads; several processes may
    share the disk tier.

    Args:
        disk: tier that all KV is written to in the background; None: KV evicted from memory is
            dropped.
        accelerator_bytes: capacity on `device`; 0: use host memory only.
        device: device of the KV returned by `get`.
    """

    def __init__(
        self,
        *,
        host_bytes: int = 1 << 30,
        disk: DiskTier | None = None,
        accelerator_bytes: int = 0,
        device: torch.device | str = "cpu",
        speeds: Speeds | None = None,
        make_policy: Callable[[], EvictionPolicy] = Heat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_hits = self.num_misses = 0  # outcomes of `get`
        self.num_late = 0  # misses where computing was expected to be faster than loading
        self.disk = disk
        self.speeds = speeds or Speeds()
        self._device = torch.device(device)
        places = [(accelerator_bytes, self._device)] if accelerator_bytes else []
        self.memory = [
            MemoryTier(capacity_bytes=size, device=place, policy=make_policy(), clock=clock)
            for size, place in [*places, (host_bytes, torch.device("cpu"))]
        ]
        self._lock = threading.RLock()
        self._loads: dict[str, ChunkLoad] = {}
        self._num_groups = self._num_queued = 0
        self._unwritten: dict[str, ChunkKV] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ragboost-write")
        self._loader = None
        if disk is not None:
            self._loader = Loader(
                disk, self.memory[0].device, speeds=self.speeds, done=self._loaded
            )

    def __contains__(self, key: str) -> bool:
        with self._lock:
            if self._is_in_memory(key):
                return True
        return self.disk is not None and key in self.disk

    @property
    def version(self) -> int:
        with self._lock:
            on_disk = 0 if self.disk is None else self.disk.num_removed
            return self._num_queued + on_disk + sum(tier.version for tier in self.memory)

    def get(self, key: str) -> ChunkKV | None:
        """Return KV, loading it from disk unless computing it is expected to be faster."""
        with self._lock:
            chunk = self._from_memory(key)
            load = self._loads.get(key)
            if chunk is None and load is None and self.disk is not None and key in self.disk:
                load = self._start([key], is_awaited=True)[0]
        if chunk is None and load is not None:
            chunk = self._await(load)
        with self._lock:
            if chunk is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
        return chunk.to(self._device)

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """Store KV and record the speed of computing it. KV that is stored already is kept, but a
        broken file is replaced."""
        if chunk.compute_s is not None:
            self.speeds.computed(len(chunk.tokens), chunk.compute_s)
        with self._lock:
            if self._from_memory(key) is not None:
                return True
        if self.disk is not None and self.disk.check(key):
            return True
        with self._lock:
            is_kept = self._place(key, chunk)
            self._write_behind(key, chunk)
            return is_kept or key in self._unwritten

    def replace(self, key: str, chunk: ChunkKV) -> None:
        if key not in self:
            return
        with self._lock:
            for tier in self.memory:
                if key in tier and tier.put(key, chunk) is None:
                    tier.discard(key)
            self._write_behind(key, chunk, is_new=True)

    def discard(self, key: str) -> None:
        with self._lock:
            for tier in self.memory:
                tier.discard(key)
            self._unwritten.pop(key, None)
            if key in self._loads:
                self._loads.pop(key).is_cancelled = True
        if self.disk is not None:
            self.disk.remove(key)

    def prefetch(self, keys: Sequence[str]) -> None:
        """Start loading KV that is only on disk, all chunks of the request together. It stays in
        memory until it is used, for `PIN_S` seconds at most."""
        if self.disk is None:
            return
        with self._lock:
            missing = [
                key
                for key in dict.fromkeys(keys)
                if key not in self._loads and not self._is_in_memory(key)
            ]
            if missing:
                self._start(missing, is_awaited=False)

    def clear(self) -> None:
        """Remove all KV, on disk too."""
        with self._lock:
            for tier in self.memory:
                tier.clear()
            self._unwritten.clear()
            for load in self._loads.values():
                load.is_cancelled = True
            self._loads.clear()
        if self.disk is not None:
            self.disk.clear()

    def flush(self) -> None:
        """Wait until all KV in memory is on disk, as far as it fits there."""
        if self.disk is None:
            return
        with self._lock:
            everything = {key: chunk for tier in self.memory for key, chunk in tier.items()}
        for key, chunk in everything.items():
            with self._lock:
                is_queued = key in self._unwritten
            if not is_queued and key not in self.disk:
                self.disk.save(key, chunk)
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Flush to disk and stop the threads."""
        self.flush()
        self._writer.shutdown()
        if self._loader is not None:
            self._loader.close()

    def check_integrity(self) -> None:
        """Check the recorded sizes of the memory tiers."""
        with self._lock:
            for tier in self.memory:
                tier.check_integrity()

    def _is_in_memory(self, key: str) -> bool:
        return key in self._unwritten or any(key in tier for tier in self.memory)

    def _from_memory(self, key: str) -> ChunkKV | None:
        for number, tier in enumerate(self.memory):
            chunk = tier.get(key)
            if chunk is not None:
                if number > 0:  # promote it, demoting the KV that it displaces
                    self._demote(0, self.memory[0].put(key, chunk) or [])
                return chunk
        return self._unwritten.get(key)

    def _place(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> bool:
        """Put KV into the fastest tier that has room."""
        for number, tier in enumerate(self.memory):
            evicted = tier.put(key, chunk, is_pinned=is_pinned)
            if evicted is not None:
                self._demote(number, evicted)
                return True
        return False

    def _demote(self, number: int, evicted: Sequence[Evicted]) -> None:
        """Move KV evicted from a tier to the next one, and from the last one to disk."""
        for key, chunk in evicted:
            below = self.memory[number + 1 :]
            if any(key in tier for tier in below):
                continue
            if below:
                self._demote(number + 1, below[0].put(key, chunk) or [])
            else:
                self._write_behind(key, chunk)

    def _write_behind(self, key: str, chunk: ChunkKV, *, is_new: bool = False) -> None:
        if self.disk is None or (not is_new and (key in self._unwritten or key in self.disk)):
            return
        queued_bytes = sum(other.size_bytes for other in self._unwritten.values())
        if queued_bytes and queued_bytes + chunk.size_bytes > WRITE_BEHIND_BYTES:
            return
        self._unwritten[key] = chunk
        self._num_queued += 1
        self._writer.submit(self._write, key, chunk).add_done_callback(_log_failure)

    def _write(self, key: str, chunk: ChunkKV) -> None:
        assert self.disk is not None, "a writer without a disk"
        with self._lock:
            if self._unwritten.get(key) is not chunk:  # replaced or removed since
                return
        is_saved = self.disk.save(key, chunk)
        with self._lock:
            is_wanted = self._is_in_memory(key)  # not dropped meanwhile
            if self._unwritten.get(key) is chunk:
                del self._unwritten[key]
                self._num_queued += not is_saved  # it may be lost
        if not is_wanted:
            self.disk.remove(key)

    def _start(self, keys: Sequence[str], *, is_awaited: bool) -> list[ChunkLoad]:
        assert self._loader is not None, "a load without a disk"
        self._num_groups += 1
        loads = [ChunkLoad(key, self._num_groups, is_awaited=is_awaited) for key in keys]
        self._loads.update((load.key, load) for load in loads)
        self._loader.start(loads)
        return loads

    def _loaded(self, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        """Store a loaded chunk. Called in a loader thread at the end of every load."""
        with self._lock:
            if self._loads.get(load.key) is load:
                del self._loads[load.key]
                if chunk is not None:
                    self._place(load.key, chunk, is_pinned=True)

    def _await(self, load: ChunkLoad) -> ChunkKV | None:
        """Wait for a load and return its chunk; None if it failed or computing is faster."""
        if not load.has_opened():
            return None
        # The chunks of a request load together, so they are waited for together, or not at all.
        with self._lock:
            ahead = [other for other in self._loads.values() if other.group <= load.group]
        load_s = self.speeds.load_s(sum(other.unread_bytes for other in ahead))
        prefill_s = self.speeds.compute_s(
            sum(other.num_unread_tokens for other in ahead if other.group == load.group)
        )
        if load_s is not None and prefill_s is not None and load_s > prefill_s:
            with self._lock:
                self.num_late += 1
                if load.num_read == 0 and self._loads.get(load.key) is load:
                    del self._loads[load.key]
                    load.is_cancelled = True
            return None
        return load.chunk()


def _log_failure(written: "Future[None]") -> None:
    error = written.exception()
    if error is not None:
        logger.error("writing a chunk file failed", exc_info=error)
