"""The chunks on their way into memory: from which tier each is asked, and how long requests wait
for it rather than compute it. Does not know memory."""

import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice

from ragboost.chunk_cache.store.background import BackgroundTier, ChunkLoad
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.util.bounded_map import BoundedMap

MIN_WAIT_S, MAX_WAIT_S = 0.05, 5.0
"""Bounds of the time for which a request waits for its chunks: as long as computing those that have
not arrived would take, since the last one has; the greatest while that is not known."""
MISS_S = 1.0
"""Seconds for which a chunk that was nowhere is not looked for again."""
_MAX_MISSED = 1 << 16
_MAX_LOADS = 1 << 14  # chunks on their way; more are computed
_MAX_BESIDE = 256  # chunks of a request that one which arrives may prolong; pins are many more


class LoadTable:
    """Loads by key. `keep` stores a loaded chunk, or None for one that was nowhere, under `lock`,
    and returns True if it is in memory."""

    def __init__(
        self,
        lock: threading.RLock,
        *,
        keep: Callable[[str, ChunkKV | None], bool],
        clock: Callable[[], float],
    ) -> None:
        self.tiers: list[BackgroundTier] = []  # asked in this order
        self._lock, self._keep, self._clock = lock, keep, clock
        self._has_ended = threading.Condition(lock)
        self._loads: dict[str, ChunkLoad] = {}
        self._missed: BoundedMap[str, float] = BoundedMap(max_entries=_MAX_MISSED)  # until when

    @property
    def is_backed(self) -> bool:
        return bool(self.tiers)

    def __contains__(self, key: str) -> bool:
        return key in self._loads

    def __len__(self) -> int:
        return len(self._loads)

    def start(self, chunks: Mapping[str, int]) -> None:
        """Begin to load chunks of one request, by key with their tokens; 0: unknown."""
        with self._lock:
            now = self._clock()
            missing = {
                key: num_tokens
                for key, num_tokens in chunks.items()
                if key not in self._loads and now >= (self._missed.peek(key) or -math.inf)
            }
            wanted = dict(islice(missing.items(), _MAX_LOADS - len(self._loads)))
            if not wanted or not self.is_backed:
                return
            until = now + self._wait_s(sum(wanted.values()))
            beside = wanted.keys() if len(wanted) <= _MAX_BESIDE else ()
            loads = [
                ChunkLoad(key, count, beside=beside, wait_until=until, latest=now + MAX_WAIT_S)
                for key, count in wanted.items()
            ]
            self._loads.update((load.key, load) for load in loads)
            self._ask(loads, 0)

    def is_awaited(self, keys: Iterable[str]) -> bool:
        """Return True while one is on its way, and sooner there than computed."""
        now = self._clock()
        with self._lock:
            return any(now < self._loads[key].wait_until for key in keys if key in self._loads)

    def wait(self, *, timeout_s: float) -> None:
        with self._lock:
            if self._loads:
                self._has_ended.wait(timeout_s)

    def load(self, key: str) -> ChunkKV | None:
        """Load a chunk and wait for it, as long as a tier answers."""
        with self._lock:
            self._missed.pop(key)
            self.start({key: 0})
            load = self._loads.get(key)
        while load is not None and not load.has_ended.wait(0.1):
            if not any(tier.is_available for tier in self.tiers):
                return None
        return None if load is None else load.chunk

    def cancel(self, keys: Iterable[str] | None = None) -> None:
        """Drop the results of loads; None: of all. Requires the lock."""
        for key in [*self._loads] if keys is None else keys:
            if key in self._loads:
                self._loads.pop(key).is_cancelled = True

    def forget_miss(self, key: str) -> None:
        self._missed.pop(key)

    def done(self, number: int, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        """Note what tier `number` has found, or ask the next one. Called in a loading thread."""
        if chunk is None and not load.is_cancelled:
            self._ask([load], number + 1)
        else:
            self._end(load, chunk)

    def _ask(self, loads: Sequence[ChunkLoad], first: int) -> None:
        """Load chunks from the first tier from number `first` on that is worth it and answers."""
        for tier in self.tiers[first:]:
            is_trusted = tier.is_trusted
            if not tier.speeds.is_worth_loading():
                tier.count("slower", len(loads))
            elif tier.load(loads):
                for load in loads if not is_trusted else ():
                    load.wait_until = -math.inf  # probing a failing tier: requests do not wait
                return
            else:
                tier.count("unavailable", len(loads))
        for load in loads:
            self._end(load, None)

    def _end(self, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        with self._lock:
            if self._loads.get(load.key) is load:
                del self._loads[load.key]
                if not self._keep(load.key, chunk):
                    self._missed.put(load.key, self._clock() + MISS_S)
                elif chunk is not None:
                    self._prolong(load.beside)
            self._has_ended.notify_all()
        load.end(chunk)

    def _prolong(self, keys: Collection[str]) -> None:
        """After one more has arrived, let requests wait for what is left for as long as computing
        that takes from now on."""
        now = self._clock()
        loads = [self._loads[key] for key in keys if key in self._loads]
        left = [load for load in loads if now < load.wait_until]
        until = now + self._wait_s(sum(load.num_tokens for load in left))
        for load in left:
            load.wait_until = min(load.latest, max(load.wait_until, until))

    def _wait_s(self, num_tokens: int) -> float:
        compute_s = self.tiers[0].speeds.compute_s(num_tokens)
        return MAX_WAIT_S if compute_s is None else min(MAX_WAIT_S, max(MIN_WAIT_S, compute_s))
