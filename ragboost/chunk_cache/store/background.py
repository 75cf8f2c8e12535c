"""A disk or a remote store, which only background threads ask: callers learn at once what an index
in memory knows. Slow or hung, it costs hits, never a caller's time."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ragboost.chunk_cache.store.chunk import ChunkKV, Origin
from ragboost.chunk_cache.store.memory import ChunkTier, TierStats
from ragboost.chunk_cache.store.workers import WORK_ERRORS, Breaker, Speeds, Workers
from ragboost.util.bounded_map import BoundedMap

logger = logging.getLogger(__name__)

WRITE_BEHIND_BYTES = 1 << 28
"""Maximum bytes of KV queued for writing, and of the file that is being written; KV beyond it is
written when it is evicted from memory, or by `flush`. A larger chunk is written alone."""
HANG_S = 10.0
"""Seconds after which one call of a verb counts as hung."""
REMOVE_AGAIN_S = 1.0
"""Seconds after which a removal that failed is tried again."""
_NUM_LOADERS = 2  # so that a long load does not block a request that waits for a short one
_MAX_KNOWN = 1 << 18


class ChunkLoad:
    """KV of one chunk (of 0 tokens: unknown) on its way into memory, with those of the keys
    `beside`. Requests wait until `wait_until`, rather than compute it."""

    def __init__(
        self,
        key: str,
        num_tokens: int,
        *,
        beside: Collection[str],
        wait_until: float,
        latest: float,
    ) -> None:
        self.key, self.num_tokens, self.beside = key, num_tokens, beside
        self.wait_until, self.latest = wait_until, latest
        self.is_cancelled = False  # the result is not needed any more and is dropped
        self.has_ended = threading.Event()
        self.chunk: ChunkKV | None = None

    def end(self, chunk: ChunkKV | None) -> None:
        self.chunk = chunk
        self.has_ended.set()


class BackgroundTier:
    """A place with its threads: two that load, and one that writes and removes, in order. Safe to
    use from several threads; no method waits but `drain` and `close`."""

    def __init__(
        self,
        tier: ChunkTier,
        *,
        name: str,
        known: Iterable[str] = (),
        write_bytes: int = WRITE_BEHIND_BYTES,
        speeds: Speeds,
        done: Callable[[ChunkLoad, ChunkKV | None], None],
        find: Callable[[str], ChunkKV | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tier, self.speeds = tier, speeds
        self.version = 0  # number of changes, those included that may have been none
        self.outcomes: Counter[str] = Counter()  # of chunks that it was asked for
        self.load_seconds = 0.0
        self._done, self._find, self._clock = done, find, clock
        self.name, self._max_queued = name, write_bytes // 2  # half is for the encoded file
        self._lock = threading.Lock()
        # Of loading; of the rest. A store may fail one and do the other.
        self._loading = Breaker(name=f"loading from the {name} of chunk KV", clock=clock)
        self._writing = Breaker(name=f"writing to the {name} of chunk KV", clock=clock)
        self._known: BoundedMap[str, Origin] = BoundedMap(max_entries=_MAX_KNOWN)
        for key in known:
            self._known.put(key, Origin())
        self._unwritten: dict[str, ChunkKV] = {}
        self._unwritten_bytes = 0
        self._behind: BoundedMap[str, bool] = BoundedMap(max_entries=_MAX_KNOWN)  # see `is_new`
        self._removed: BoundedMap[str, None] = BoundedMap(max_entries=_MAX_KNOWN)  # but still there
        self._num_clears = self._num_cleared = 0  # asked for; done
        self._is_cleaning = False  # removals or a clear are queued
        self._remove_from = 0.0  # when removals, of which one has failed, are tried again
        self._busy: dict[int, float] = {}  # beginning of each thread's running call
        self._hung: set[tuple[int, float]] = set()
        self._loaders = Workers(_NUM_LOADERS, name=f"ragboost-load-{name}")
        self._writer = Workers(1, name=f"ragboost-write-{name}")

    @property
    def is_available(self) -> bool:
        """False while the place hangs, or has failed to load several times and rests."""
        return self._answers(self._loading)

    @property
    def is_trusted(self) -> bool:
        """True if nothing hangs, the last loads did not fail, and loading is faster than computing:
        requests may wait for it."""
        is_failing = self._hung or self._loading.is_failing
        return self.is_available and not is_failing and not self.speeds.is_slow

    def _answers(self, breaker: Breaker) -> bool:
        now = self._clock()
        with self._lock:
            hung = {call for call in self._busy.items() if now - call[1] > HANG_S}
            has_new, self._hung = bool(hung - self._hung), hung
        for each in (self._loading, self._writing) if has_new else ():
            each.failed(is_hung=True)
        return len(hung) < _NUM_LOADERS and not breaker.is_open

    def __contains__(self, key: str) -> bool:
        with self._lock:
            return key in self._known or key in self._unwritten

    def origin(self, key: str) -> Origin | None:
        with self._lock:
            chunk = self._unwritten.get(key)
            return self._known.peek(key) if chunk is None else chunk.origin

    def holds(self, key: str) -> bool:
        """Return True if KV is stored, found or not: a removal takes time, and may fail."""
        with self._lock:
            return any(key in each for each in (self._known, self._unwritten, self._removed))

    def keys(self) -> list[str]:
        with self._lock:
            return [*self._known]

    def stats(self) -> TierStats:
        size = getattr(self.tier, "recorded_bytes", None)
        capacity = getattr(self.tier, "capacity_bytes", None)
        evicted = getattr(self.tier, "num_evicted", None)
        with self._lock:
            loads = dict(self.outcomes)
            return TierStats(
                self.name, len(self._known), size, capacity, evicted, loads, self.load_seconds
            )

    def count(self, outcome: str, num: int = 1) -> None:
        with self._lock:
            self.outcomes[outcome] += num

    def unwritten(self, key: str) -> ChunkKV | None:
        with self._lock:
            return self._unwritten.get(key)

    def load(self, loads: Sequence[ChunkLoad]) -> bool:
        """Start to load the chunks of one request; return False if the place is not asked."""
        if not self.is_available:
            return False
        self._queue_cleaning()  # nothing is found until a clear that failed has succeeded
        if not self._loaders.submit(partial(self._load, loads[::2])):
            return False
        if (others := loads[1::2]) and not self._loaders.submit(partial(self._load, others)):
            for load in others:
                self._done(load, None)
        return True

    def write(self, key: str, chunk: ChunkKV, *, is_new: bool = False) -> bool:
        """Queue KV for writing, `is_new` to replace the old; return False if left for later."""
        with self._lock:
            if not is_new and key in self._unwritten:
                return True
        is_available = self._answers(self._writing)
        with self._lock:
            queued = self._unwritten_bytes
            if not is_available or (queued and queued + chunk.size_bytes > self._max_queued):
                self._behind.put(key, is_new)
                return False
            self._drop_unwritten(key)
            self._unwritten[key] = chunk
            self._unwritten_bytes += chunk.size_bytes
            self.version += 1
        if self._writer.submit(partial(self._write, key, chunk, is_new)):
            return True
        with self._lock:
            self._drop_unwritten(key)
            self._behind.put(key, is_new)
        return False

    def remove(self, key: str) -> None:
        with self._lock:
            self._known.pop(key)
            self._drop_unwritten(key)
            self._removed.put(key, None)
            self.version += 1
        self._queue_cleaning()

    def clear(self) -> None:
        """Remove everything: from now on nothing that was stored before is found."""
        with self._lock:
            self._known = BoundedMap(max_entries=_MAX_KNOWN)
            self._unwritten.clear()
            self._unwritten_bytes = 0
            self._num_clears += 1
            self.version += 1
        self._queue_cleaning()

    def drain(self, *, until: float = math.inf) -> bool:
        """Wait until everything queued is written; return False if that is not in time."""
        done = threading.Event()
        if not self._writer.submit(done.set):
            return False
        while not done.wait(0.1):
            if not self._answers(self._writing) or self._hung or self._clock() > until:
                return False
        return True

    def close(self, *, until: float = math.inf) -> None:
        """Finish what is queued, as far as the place answers until then, and stop the threads."""
        timeout_s = HANG_S if self.drain(until=until) else 0.0
        self._writer.close(timeout_s=timeout_s)
        self._loaders.close(timeout_s=timeout_s)
        self.tier.close()

    def _load(self, loads: Sequence[ChunkLoad]) -> None:
        seconds, num_tokens, ended = 0.0, 0, 0
        try:
            for load in loads:
                begin, has_failed = time.perf_counter(), False
                chunk = self._find(load.key)  # computed meanwhile
                if chunk is None and not load.is_cancelled and self.is_available:
                    chunk, has_failed = self._read(load.key)
                    num_tokens += 0 if chunk is None else len(chunk.tokens)
                ended += 1
                self._done(load, chunk)
                if not has_failed:  # of failures the breaker knows
                    seconds += time.perf_counter() - begin
            if num_tokens:
                self.speeds.loaded(num_tokens, seconds)
            elif asked := sum(load.num_tokens for load in loads):
                self.speeds.missed(asked, seconds)
        finally:  # whatever happens, nothing may wait forever
            for load in loads[ended:]:
                self._done(load, None)

    def _read(self, key: str) -> tuple[ChunkKV | None, bool]:
        """Return KV, and True if the place has failed."""
        with self._lock:
            num_clears = self._num_clears
            if num_clears != self._num_cleared or key in self._removed:
                return None, False
        chunk, has_answered, begin = None, False, time.perf_counter()
        with self._asking(self._loading):
            chunk = self.tier.load(key)
            has_answered = True
        with self._lock:
            missing = "evicted" if key in self._known else "absent"
            outcome = "loaded" if chunk is not None else missing if has_answered else "failed"
            self.outcomes[outcome] += 1
            self.load_seconds += time.perf_counter() - begin
            if num_clears != self._num_clears or key in self._removed:
                return None, not has_answered
            if chunk is None:
                self.version += key in self._known
                self._known.pop(key)
            else:
                self._known.put(key, chunk.origin)
        return chunk, not has_answered

    def _write(self, key: str, chunk: ChunkKV, is_new: bool) -> None:
        with self._lock:
            is_wanted = self._unwritten.get(key) is chunk  # neither replaced nor removed since
            is_new = is_new or key in self._removed
        is_saved, has_answered, origin = False, False, None
        if not is_wanted:
            return
        with self._asking(self._writing):
            self._clear_place()
            origin = None if is_new else self._stored_origin(key, chunk)
            is_saved = origin is not None or self.tier.save(key, chunk)
            has_answered = True
        with self._lock:
            if self._unwritten.get(key) is chunk:
                self._drop_unwritten(key)
                self.version += 1
                if is_saved:
                    self._known.put(key, origin or chunk.origin)
                    self._removed.pop(key)
                elif not has_answered:
                    self._behind.put(key, is_new)
        if has_answered:
            self._catch_up()

    def _stored_origin(self, key: str, chunk: ChunkKV) -> Origin | None:
        """Return what KV of a key has seen that the place has, another engine's maybe; None if it
        has none, or is to keep this one instead."""
        if key not in self.tier:
            return None
        with self._lock:
            origin = self._known.peek(key)
        if origin is None:  # another engine's: not read for this, taken to be as good
            return chunk.origin
        if origin.is_settled or not chunk.origin.is_settled:
            return origin
        stored = self.tier.load(key)
        return stored.origin if stored is not None and stored.origin.is_settled else None

    def _catch_up(self) -> None:
        """Queue what is left: removals, and KV that was stored while there was no room or no
        answer, if it is in memory yet."""
        self._queue_cleaning()
        while self._answers(self._writing):
            with self._lock:
                key = next(iter(self._behind), None)
                if key is None or self._unwritten:
                    return
                is_new = bool(self._behind.pop(key))
                is_there = key in self._known and not is_new
            chunk = None if is_there else self._find(key)
            if chunk is not None and not self.write(key, chunk, is_new=is_new):
                return

    def _queue_cleaning(self) -> None:
        """Queue a clear and removals, one piece of work for all of them."""
        with self._lock:
            is_due = bool(self._removed) and self._clock() >= self._remove_from
            if self._is_cleaning or (self._num_clears == self._num_cleared and not is_due):
                return
            self._is_cleaning = True
        if not self._writer.submit(self._clean):
            self._is_cleaning = False  # the writes before it queue it again

    def _clean(self) -> None:
        """Clear and remove until the place fails; what failed is last the next time."""
        self._is_cleaning, has_failed = False, False
        while not has_failed:
            with self._lock:
                key = next(iter(self._removed), None)
                if key is not None:
                    self._removed.touch(key)
            has_failed = True
            with self._asking(self._writing):
                self._clear_place()
                if key is not None:
                    self.tier.remove(key)
                has_failed = False
            if key is None:
                return
            with self._lock:
                if has_failed:
                    self._remove_from = self._clock() + REMOVE_AGAIN_S
                else:
                    self._removed.pop(key)

    def _clear_place(self) -> None:
        num_clears = self._num_clears
        if num_clears != self._num_cleared:
            self.tier.clear()
            self._num_cleared = num_clears

    def _drop_unwritten(self, key: str) -> None:
        """Requires the lock."""
        chunk = self._unwritten.pop(key, None)
        self._unwritten_bytes -= 0 if chunk is None else chunk.size_bytes

    @contextmanager
    def _asking(self, breaker: Breaker) -> Iterator[None]:
        thread = threading.get_ident()
        with self._lock:
            self._busy[thread] = self._clock()
        try:
            yield
        except WORK_ERRORS as error:
            logger.warning("stored KV is not reached: %s", error)
            breaker.failed()
        else:
            if breaker.worked():  # try the other, too
                self._loading.end_pause()
                self._writing.end_pause()
        finally:
            with self._lock:
                del self._busy[thread]
