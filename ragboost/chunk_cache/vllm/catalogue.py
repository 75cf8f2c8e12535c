"""List the chunks that several workers hold, for the scheduler, which alone decides what is evicted
and loaded, so that the ranks' memories stay equal. Does not touch KV."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ragboost.chunk_cache.core.fill_budget import FillSpeed
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.eviction import Heat
from ragboost.chunk_cache.store.chunk import ChunkKV, Origin
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S, MISS_S
from ragboost.chunk_cache.store.memory import MemoryTier
from ragboost.chunk_cache.vllm.data import ListedChunk, RankHello, RankReport
from ragboost.util.bounded_map import BoundedMap

_MAX_LOADS = 1 << 16
_MAX_ASKED = 1 << 14  # chunks between two steps


class _RankLoad:
    def __init__(self, wait_until: float) -> None:
        self.wait_until = self.retry_at = wait_until
        self.has_failed = False
        self.loaded: dict[int, ListedChunk] = {}  # by the ranks that have it in memory

    def fail(self, now: float) -> None:
        """Note that a rank has not loaded it: nobody waits, and nobody tries again for a while."""
        self.has_failed, self.wait_until, self.retry_at = True, now, now + MISS_S


class ListStore:
    """A `KVStore` of listed chunks, bounded by the bytes that each rank holds. If it is backed, the
    ranks have a disk or a remote store to load from. Belongs to the scheduler's thread; others may
    call `prefetch`."""

    knows_all = False  # the ranks' disks do

    def __init__(self, *, capacity_bytes: int, size: int, is_backed: bool) -> None:
        self.dropped: dict[str, bool] = {}  # keys that the ranks must remove, see `StepWork`
        self._size, self._is_backed = size, is_backed
        self._asked: deque[tuple[str, int]] = deque(maxlen=_MAX_ASKED)  # keys and tokens
        self._wanted: dict[str, int] = {}  # those that the ranks are to load
        self._loads: BoundedMap[str, _RankLoad] = BoundedMap(max_entries=_MAX_LOADS)
        self._tier = MemoryTier(
            capacity_bytes=capacity_bytes,
            policy=Heat(),
            clock=time.monotonic,
            on_evict=lambda key, _: self._drop(key),
        )

    def __contains__(self, key: str) -> bool:
        return key in self._tier

    @property
    def version(self) -> int:
        return self._tier.version

    def get(self, key: str) -> ChunkKV | None:
        return self._tier.load(key)

    def origin(self, key: str) -> Origin | None:
        chunk = self._tier.peek(key)
        return None if chunk is None else chunk.origin

    def absence(self, keys: Sequence[str]) -> str:
        return "absent"  # counted nowhere

    def put(self, key: str, chunk: ChunkKV, *, is_pinned: bool = False) -> bool:
        if key in self._tier:
            return True
        if not self._tier.save(key, chunk, is_pinned=is_pinned):
            self._drop(key)
            return False
        self.dropped.pop(key, None)
        return True

    def replace(self, key: str, chunk: ChunkKV) -> None:
        if key in self._tier and not self._tier.save(key, chunk):
            self.discard(key)

    def keep(self, key: str) -> bool:
        """Return False: the ranks' memories are kept equal by evicting alike."""
        return False

    def is_kept(self, key: str) -> bool:
        return False

    def discard(self, key: str) -> None:
        self._tier.remove(key)
        self._drop(key)  # also if it is not listed: a rank may have it

    def prefetch(self, chunks: Mapping[str, int]) -> None:
        if self._is_backed:
            self._asked.extend(chunks.items())

    def take_wanted(self) -> dict[str, int]:
        self._begin_loads()
        wanted, self._wanted = self._wanted, {}
        return wanted

    def _begin_loads(self) -> None:
        now = time.monotonic()
        while self._asked:
            key, num_tokens = self._asked.popleft()
            load = self._loads.peek(key)
            if key not in self._tier and (load is None or load.retry_at < now):
                self._loads.put(key, _RankLoad(now + MAX_WAIT_S))
                self._wanted[key] = num_tokens

    def is_loading(self, keys: Sequence[str]) -> bool:
        self._begin_loads()
        now = time.monotonic()
        loads = [load for key in keys if (load := self._loads.peek(key)) is not None]
        return any(load.wait_until > now for load in loads)

    def note_loads(self, report: RankReport) -> None:
        """List the chunks that all ranks have loaded, and forget the loads that failed on one. What
        is late stays on its way, for the next request."""
        now = time.monotonic()
        for (rank, key), chunk in report.loaded.items():
            load = self._loads.peek(key)
            if load is None or load.has_failed:
                self._drop_unlisted(key)
                continue
            load.loaded[rank] = chunk
            if len(load.loaded) < self._size:
                continue
            if len({*load.loaded.values()}) == 1:
                self._loads.pop(key)
                self.put(key, chunk, is_pinned=True)  # until its request, or a minute later
            else:
                # Of different versions: one rank's was not written, or another engine's was. Where
                # they are they would be for good.
                load.fail(now)
                self._drop(key, everywhere=True)
        for key in report.late | report.absent:
            load = self._loads.peek(key)
            if load is None or load.has_failed:
                continue
            load.wait_until = now
            if key in report.absent:
                load.fail(now)
                self._drop_unlisted(key)

    def _drop_unlisted(self, key: str) -> None:
        if key not in self._tier:
            self._drop(key)

    def _drop(self, key: str, *, everywhere: bool = False) -> None:
        self.dropped[key] = everywhere or self.dropped.get(key, False)

    def clear(self) -> None:
        self._tier.clear()
        self._loads = BoundedMap(max_entries=_MAX_LOADS)
        self._asked.clear()
        self._wanted.clear()

    def close(self) -> None: ...


class RankCatalogue:
    """Reports of a model's ranks, which are alike: the `WorkerView` of several."""

    can_measure = False  # the measures compare heads of all ranks
    speed: FillSpeed | None = None

    def __init__(
        self, hello: RankHello, *, size: int, block_size: int, settings: EngineChunkSettings
    ) -> None:
        self.outcomes: dict[str, TokenOrigins] = {}
        self.failed_requests: set[str] = set()
        self.num_layers, self.block_size = hello.num_layers, block_size
        self._size, self._regime, self.generation = size, hello.regime, 0
        self._weights, self._reset_id, self.num_resets = hello.weights, "", 0
        self._store = ListStore(
            capacity_bytes=settings.host_bytes,
            size=size,
            is_backed=settings.has_more_than_memory,
        )
        self.library = self._make_library()

    def take_dropped(self) -> dict[str, bool]:
        dropped, self._store.dropped = self._store.dropped, {}
        return dropped

    def take_wanted(self) -> dict[str, int]:
        return self._store.take_wanted()

    def forget_chunks(self) -> None:
        """Empty the list; the ranks follow. What they report of earlier steps nobody asks for. They
        may have been given other weights in place: until they have told, keys are no others'."""
        self._reset_id, self.num_resets = secrets.token_hex(8), self.num_resets + 1
        self._store.clear()
        self.library = self._make_library()

    def take(self, report: RankReport, *, is_unfinished: Callable[[str], bool]) -> None:
        """Note what all ranks did in a step; outcomes only of requests that may ask for them."""
        for request_id, counts in report.outcomes.items():
            if is_unfinished(request_id):
                self.outcomes[request_id] = counts
        for request_id in filter(is_unfinished, report.failed):
            self.failed_requests.add(request_id)
            self.outcomes.pop(request_id, None)
        is_new = report.generation != self.generation
        if is_new:  # the ranks have emptied their stores
            self.generation, self._weights = report.generation, report.weights
            if report.num_resets == self.num_resets:
                self._reset_id = ""
            self._store.clear()
            self.library = self._make_library()
        for key in report.lost:
            self._store.discard(key)
        self._store.note_loads(RankReport() if is_new else report)
        for (chunk, is_first), count in report.captured.items():
            if is_new or count != self._size:
                self._store.discard(chunk.key)
            else:
                self.library.add(chunk.key, chunk, is_first=is_first)

    def _make_library(self) -> ChunkLibrary:
        """Return the library of the present weights, whose keys are no others' keys."""
        identity = Identity(model=f"ranks {self._weights} {self._reset_id}")
        return ChunkLibrary(self._store, identity=identity, regime=self._regime)
