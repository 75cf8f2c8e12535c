"""Chunk KV on an accelerator, in host memory and on disk, behind the interface of `ChunkStore`.

What is used often, and costs much to compute for its bytes, stays in fast memory; the rest moves
down, and comes back when a request wants it, in the background where it was announced. Knows tiers.
Does not know models or requests.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from ragboost.chunk_cache.eviction import Replacement
from ragboost.chunk_cache.eviction.heat import Heat
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.kv.tiers.disk import DiskTier
from ragboost.chunk_cache.kv.tiers.loader import ChunkLoad, Loader
from ragboost.chunk_cache.kv.tiers.memory import Dropped, MemoryTier, moved
from ragboost.chunk_cache.kv.tiers.speeds import Speeds, preload_depth

logger = logging.getLogger(__name__)

WRITE_BEHIND_BYTES = 1 << 28
"""KV that may wait to be written; what is beyond it is written when it leaves memory, or by
`flush`."""


class TieredStore:
    """A `KVStore` of up to three tiers. Safe to use from several threads; the disk tier may be
    shared with other processes.

    Args:
        host_bytes: KV kept in host memory.
        disk: where KV goes that leaves memory, and where all of it is written behind; None: it is
            dropped.
        accelerator_bytes: KV kept on `device`; 0: only host memory is used.
        device: where `get` returns KV.
        is_layerwise: whether `get` returns KV whose later layers are still loading, as soon as
            enough of them are there by Cache-Craft eq. 16. Reading a layer then waits for it, and
            raises `ChunkLostError` where it cannot be read. Only for callers that start again then,
            as `ChunkReuse.prefill` does.
        speeds: of loading and computing, to begin with.
        make_policy: makes the policy of each memory tier.
        clock: seconds.

    Attributes:
        num_hits, num_misses: of `get`.
        num_late: of the misses, those that were computed because loading would have been slower.
    """

    def __init__(
        self,
        *,
        host_bytes: int,
        disk: DiskTier | None = None,
        accelerator_bytes: int = 0,
        device: torch.device | str = "cpu",
        is_layerwise: bool = False,
        speeds: Speeds | None = None,
        make_policy: Callable[[], Replacement] = Heat,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_hits = self.num_misses = self.num_late = 0
        self.disk = disk
        self.speeds = speeds or Speeds()
        self._device = torch.device(device)
        self._is_layerwise = is_layerwise
        places = [(accelerator_bytes, self._device)] if accelerator_bytes else []
        self.memory = [
            MemoryTier(capacity_bytes=size, device=place, policy=make_policy(), clock=clock)
            for size, place in [*places, (host_bytes, torch.device("cpu"))]
        ]
        self._lock = threading.RLock()
        self._loads: dict[str, ChunkLoad] = {}
        self._num_groups = 0
        self._unwritten: dict[str, ChunkKV] = {}
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ragboost-write")
        self._loader = None
        if disk is not None:
            place = self._device if is_layerwise else self.memory[0].device
            self._loader = Loader(disk, place, speeds=self.speeds, done=self._loaded)

    def __contains__(self, key: str) -> bool:
        with self._lock:
            if any(key in tier for tier in self.memory) or key in self._unwritten:
                return True
        return self.disk is not None and key in self.disk

    def get(self, key: str) -> ChunkKV | None:
        """See `KVStore.get`. What is on disk alone is loaded if that is not slower than computing
        it, as far as speeds are known."""
        with self._lock:
            chunk = self._from_memory(key)
            if chunk is None and self.disk is not None:
                load = self._loads.get(key) or self._start([key], is_awaited=True)[0]
        if chunk is None and self.disk is not None:
            chunk = self._await(load)
        with self._lock:
            if chunk is None:
                self.num_misses += 1
                return None
            self.num_hits += 1
        return moved(chunk, self._device) if isinstance(chunk.layers, tuple) else chunk

    def put(self, key: str, chunk: ChunkKV) -> bool:
        """See `KVStore.put`. Also tells the speed of computing, where the chunk says it."""
        if chunk.compute_s is not None:
            self.speeds.computed(len(chunk.tokens), chunk.compute_s)
        if key in self:
            with self._lock:
                self._from_memory(key)
            return True
        with self._lock:
            kept = self._place(key, chunk)
            self._write_behind(key, chunk)
            return kept or key in self._unwritten

    def replace(self, key: str, chunk: ChunkKV) -> None:
        """See `KVStore.replace`."""
        if key not in self:
            return
        with self._lock:
            for tier in self.memory:
                if key in tier and tier.put(key, chunk) is None:
                    tier.discard(key)
            self._write_behind(key, chunk, is_new=True)

    def discard(self, key: str) -> None:
        """See `KVStore.discard`."""
        with self._lock:
            for tier in self.memory:
                tier.discard(key)
            self._unwritten.pop(key, None)
            if key in self._loads:
                self._loads.pop(key).is_cancelled = True
        if self.disk is not None:
            self.disk.remove(key)

    def prefetch(self, keys: Sequence[str]) -> None:
        """See `KVStore.prefetch`: what is on disk alone begins to load, all chunks of the request
        together, and stays in memory until it is used, for a minute at most."""
        if self.disk is None:
            return
        with self._lock:
            missing = [
                key
                for key in dict.fromkeys(keys)
                if key not in self._loads
                and key not in self._unwritten
                and not any(key in tier for tier in self.memory)
            ]
            if missing:
                self._start(missing, is_awaited=False)

    def clear(self) -> None:
        """Drop everything, on disk too."""
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
        """Wait until all that is in memory is on disk, as far as it fits there."""
        if self.disk is None:
            return
        with self._lock:
            everything = {dropped.key: dropped for tier in self.memory for dropped in tier.items()}
        for key, chunk in everything.values():
            with self._lock:
                waits = key in self._unwritten
            if not waits and key not in self.disk:
                self.disk.save(key, chunk)
        self._writer.submit(lambda: None).result()

    def close(self) -> None:
        """Write what is not on disk, and end the threads."""
        self.flush()
        self._writer.shutdown()
        if self._loader is not None:
            self._loader.close()

    def check_integrity(self) -> None:
        """Raise where the books of the memory tiers do not add up."""
        with self._lock:
            for tier in self.memory:
                tier.check_integrity()

    def _from_memory(self, key: str) -> ChunkKV | None:
        for number, tier in enumerate(self.memory):
            chunk = tier.get(key)
            if chunk is not None:
                if number > 0:  # used again: it moves up, and what it displaces moves down
                    self._demote(0, self.memory[0].put(key, chunk) or [])
                return chunk
        return self._unwritten.get(key)

    def _place(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> bool:
        """Put KV into the fastest tier that takes it."""
        for number, tier in enumerate(self.memory):
            dropped = tier.put(key, chunk, is_pinned=is_pinned)
            if dropped is not None:
                self._demote(number, dropped)
                return True
        return False

    def _demote(self, number: int, dropped: Sequence[Dropped]) -> None:
        """Move what had to leave a tier to the next one, and from the last one to disk."""
        for key, chunk in dropped:
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
        waiting = sum(other.size_bytes for other in self._unwritten.values())
        if waiting and waiting + chunk.size_bytes > WRITE_BEHIND_BYTES:
            return
        self._unwritten[key] = chunk
        self._writer.submit(self._write, key, chunk).add_done_callback(_report)

    def _write(self, key: str, chunk: ChunkKV) -> None:
        assert self.disk is not None, "a writer without a disk"
        with self._lock:
            if self._unwritten.get(key) is not chunk:  # replaced or dropped meanwhile
                return
        self.disk.save(key, chunk)
        with self._lock:
            is_wanted = self._unwritten.get(key) is chunk
            if is_wanted:
                del self._unwritten[key]
        if not is_wanted and key not in self:
            self.disk.remove(key)

    def _start(self, keys: Sequence[str], *, is_awaited: bool) -> list[ChunkLoad]:
        assert self._loader is not None, "a load without a disk"
        self._num_groups += 1
        loads = [ChunkLoad(key, self._num_groups, is_awaited=is_awaited) for key in keys]
        self._loads.update((load.key, load) for load in loads)
        self._loader.start(loads)
        return loads

    def _loaded(self, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        """A load has ended, in a loader's thread."""
        with self._lock:
            if self._loads.get(load.key) is load:
                del self._loads[load.key]
                if chunk is not None:
                    self._place(load.key, chunk, is_pinned=True)

    def _await(self, load: ChunkLoad) -> ChunkKV | None:
        """Return what a load brings; None where there is nothing, or computing is faster."""
        stream = load.stream()
        if stream is None:
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
                if stream.num_read == 0 and self._loads.get(load.key) is load:
                    del self._loads[load.key]
                    load.is_cancelled = True
            return None
        if not self._is_layerwise:
            return load.chunk()
        depth = 1
        if load_s is not None and prefill_s is not None:
            depth = preload_depth(len(stream), prefill_s=prefill_s, load_s=load_s)
        return stream.chunk if stream.wait(depth) else None


def _report(written: "Future[None]") -> None:
    error = written.exception()
    if error is not None:
        logger.error("the writer of chunk files failed", exc_info=error)
