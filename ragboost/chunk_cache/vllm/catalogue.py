"""List the chunks that several workers in other processes hold, for the scheduler.

The scheduler alone decides what is evicted, so that the ranks' stores stay equal. Knows reports.
Does not touch KV.
"""

import time
from collections.abc import Callable, Sequence

import torch

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.eviction import make_eviction_policy
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.keys import Identity
from ragboost.chunk_cache.store.memory import MemoryTier
from ragboost.chunk_cache.vllm.data import RankHello, RankReport


class ListStore:
    """A `KVStore` of listed chunks, bounded by the bytes that each rank holds."""

    def __init__(self, *, capacity_bytes: int, eviction: str) -> None:
        self.dropped: list[str] = []  # keys that the ranks must remove
        self._tier = MemoryTier(
            capacity_bytes=capacity_bytes,
            device=torch.device("cpu"),
            policy=make_eviction_policy(eviction),
            clock=time.monotonic,
        )

    def __contains__(self, key: str) -> bool:
        return key in self._tier

    @property
    def version(self) -> int:
        return self._tier.version

    def get(self, key: str) -> ChunkKV | None:
        return self._tier.get(key)

    def put(self, key: str, chunk: ChunkKV) -> bool:
        if key in self._tier:
            return True
        evicted = self._tier.put(key, chunk)
        if evicted is None:
            self.dropped.append(key)
            return False
        self.dropped = [other for other in self.dropped if other != key]
        self.dropped.extend(entry.key for entry in evicted)
        return True

    def replace(self, key: str, chunk: ChunkKV) -> None:
        if key in self._tier and self._tier.put(key, chunk) is None:
            self.discard(key)

    def discard(self, key: str) -> None:
        self._tier.discard(key)
        self.dropped.append(key)  # also if it is not listed: a rank may have it

    def prefetch(self, keys: Sequence[str]) -> None:
        """Do nothing: the ranks hold everything in memory."""

    def clear(self) -> None:
        self._tier.clear()

    def close(self) -> None:
        """Do nothing: nothing is persistent."""


class RankCatalogue:
    """List of what the ranks of a model, which are alike, report to have stored and done: the
    `WorkerView` of several."""

    can_measure = False  # the measures compare heads of all ranks

    def __init__(
        self, hello: RankHello, *, size: int, block_size: int, settings: EngineChunkSettings
    ) -> None:
        self.outcomes: dict[str, TokenOrigins] = {}
        self.failed_requests: set[str] = set()
        self.num_layers, self.block_size = hello.num_layers, block_size
        self._size, self._regime, self._generation = size, hello.regime, 0
        self._num_resets, self._is_reset = 0, False
        self._store = ListStore(capacity_bytes=settings.host_bytes, eviction=settings.eviction)
        self.library = self._make_library()

    def take_dropped(self) -> list[str]:
        dropped, self._store.dropped = self._store.dropped, []
        return dropped

    def take_reset(self) -> bool:
        is_reset, self._is_reset = self._is_reset, False
        return is_reset

    def forget_chunks(self) -> None:
        """Empty the list; the ranks follow in the next step. What they report of steps before that
        has keys of its own, which nobody asks for."""
        self._num_resets, self._is_reset = self._num_resets + 1, True
        self._store.clear()
        self.library = self._make_library()

    def take(self, report: RankReport, *, is_unfinished: Callable[[str], bool]) -> None:
        """Note what all ranks did in a step; outcomes only of unfinished requests, which may still
        ask for them."""
        for request_id, counts in report.outcomes.items():
            if is_unfinished(request_id):
                self.outcomes[request_id] = counts
        for request_id in filter(is_unfinished, report.failed):
            self.failed_requests.add(request_id)
            self.outcomes.pop(request_id, None)
        is_new = report.generation != self._generation
        if is_new:  # the ranks have emptied their stores
            self._generation = report.generation
            self._store.clear()
            self.library = self._make_library()
        for key in report.lost:
            self._store.discard(key)
        for (chunk, is_first), count in report.captured.items():
            if is_new or count != self._size:
                self._store.discard(chunk.key)
            else:
                self.library.add(chunk.key, chunk, is_first=is_first)

    def _make_library(self) -> ChunkLibrary:
        """Return the library of the present weights, whose keys are no others' keys."""
        identity = Identity(model=f"ranks {self._generation} {self._num_resets}")
        return ChunkLibrary(self._store, identity=identity, regime=self._regime)
