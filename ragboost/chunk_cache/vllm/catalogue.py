"""List the chunks that several workers hold, for the scheduler, which alone decides what is evicted
and loaded, so that the ranks' memories stay equal. Does not touch KV."""

import math
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from ragboost.chunk_cache.core.fill_budget import FillSpeed
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.store.background import ChunkLoad
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.load_table import MAX_WAIT_S, LoadTable
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.data import ListedChunk, RankHello, RankReport


class RankLoads(LoadTable):
    """Loads that each rank does by itself, when a step's work says so."""

    is_backed = False  # the ranks have a disk or a remote store

    def __init__(
        self,
        lock: threading.RLock,
        *,
        keep: Callable[[str, ChunkKV | None], bool],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(lock, keep=keep, clock=clock)
        self._wanted: dict[str, int] = {}  # tokens by key, until the scheduler takes them
        self._loaded: dict[str, dict[int, ListedChunk]] = {}  # by the ranks that have it in memory

    def start(self, chunks: Mapping[str, int]) -> None:
        with self._lock:  # what ranks have never answered is asked for again
            now = self._clock()
            self.cancel([key for key in chunks if key in self and self._loads[key].latest < now])
            super().start(chunks)

    def arrived(self, key: str, chunk: ListedChunk, *, rank: int, size: int) -> bool:
        """Note what a rank of `size` has loaded; return False if they have different versions."""
        loaded = self._loaded[key]
        loaded[rank] = chunk
        if len(loaded) < size:
            return True
        is_same = len({*loaded.values()}) == 1
        self._end(self._loads[key], chunk if is_same else None)
        return is_same

    def stop(self, key: str, *, is_late: bool) -> None:
        """Let nobody wait any longer; what is late stays on its way, for the next request."""
        if key in self and is_late:
            self._loads[key].wait_until = -math.inf
        elif key in self:
            self._end(self._loads[key], None)

    def take_wanted(self) -> dict[str, int]:
        with self._lock:
            wanted, self._wanted = self._wanted, {}
            self._loaded = {key: ranks for key, ranks in self._loaded.items() if key in self}
            return {key: num_tokens for key, num_tokens in wanted.items() if key in self}

    def _ask(self, loads: Sequence[ChunkLoad], first: int) -> None:
        for load in loads:
            self._loaded[load.key] = {}
            self._wanted[load.key] = load.num_tokens

    def _wait_s(self, num_tokens: int) -> float:
        return MAX_WAIT_S


class ListStore(TieredStore):
    """Listed chunks, bounded by the bytes that each rank holds; `is_backed`: the ranks have a disk
    or a remote store. Belongs to the scheduler's thread; others may call `prefetch`."""

    takes_commands = False  # the ranks have the KV, and are kept equal by evicting alike

    def __init__(self, *, capacity_bytes: int, size: int, is_backed: bool) -> None:
        super().__init__(host_bytes=capacity_bytes, waits=False, clock=time.monotonic)
        self.knows_all = False  # the ranks' disks do
        self._size = size
        self._dropped: dict[str, bool] = {}  # keys that the ranks must remove, see `StepWork`
        self._loads = self.loads = RankLoads(
            self._lock, keep=self._keep_loaded, clock=time.monotonic
        )
        self.loads.is_backed = is_backed

    def discard(self, key: str) -> None:
        super().discard(key)
        self._drop(key)  # also if it is not listed: a rank may have it

    def take_dropped(self) -> dict[str, bool]:
        dropped, self._dropped = self._dropped, {}
        return {key: everywhere for key, everywhere in dropped.items() if key not in self}

    def note_loads(self, report: RankReport) -> None:
        """List the chunks that all ranks have loaded, and forget the loads that failed on one."""
        with self._lock:
            for (rank, key), chunk in report.loaded.items():
                if key not in self.loads:
                    self._drop(key)
                elif not self.loads.arrived(key, chunk, rank=rank, size=self._size):
                    # One rank's was not written, or another engine's was. Where they are they would
                    # be for good.
                    self._drop(key, everywhere=True)
            for key in report.late | report.absent:
                self.loads.stop(key, is_late=key not in report.absent)

    def _keep_loaded(self, key: str, chunk: ChunkKV | None) -> bool:
        self._drop(key)  # if it is not listed now
        return super()._keep_loaded(key, chunk)

    def _demote(self, key: str, chunk: ChunkKV) -> None:
        self._drop(key)

    def _drop(self, key: str, *, everywhere: bool = False) -> None:
        """Let the ranks remove a chunk, unless it is listed when the scheduler takes the keys."""
        self._dropped[key] = everywhere or self._dropped.get(key, False)


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
        return self._store.take_dropped()

    def take_wanted(self) -> dict[str, int]:
        return self._store.loads.take_wanted()

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
            is_whole = not is_new and count == self._size
            if not is_whole or not self.library.add(chunk.key, chunk, is_first=is_first):
                self._store.discard(chunk.key)

    def _make_library(self) -> ChunkLibrary:
        """Return the library of the present weights, whose keys are no others' keys."""
        identity = Identity(model=f"ranks {self._weights} {self._reset_id}")
        return ChunkLibrary(self._store, identity=identity, regime=self._regime)
