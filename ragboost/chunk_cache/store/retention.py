"""Pins and expiries of chunks by key, for as long as the process runs: all KV of a chunk shares its
fate. Does not know tenants."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from itertools import islice

from ragboost.chunk_cache.store.keys import keys_of, owner_of
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.util.bounded_map import BoundedMap

MAX_ENTRIES = 1 << 16
"""Maximum chunks with an expiry, and chunks that are waited for; more are refused."""
MAX_SECONDS = 10 * 365 * 86_400.0
_MAX_LOADING = 64
_MAX_LOOKS = 16  # at chunks with an expiry, for one that is evicted


class Retention:
    """Pins and expiries of one store. Thread-safe; `tend` is called a few times a second."""

    def __init__(self, store: TieredStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock, self._lock = store, clock, threading.Lock()
        # By owner, so that none takes all places; the oldest of each first.
        self._expiries: dict[str, dict[str, float]] = {}
        self._num_expiries = 0
        self._next_due = math.inf  # no expiry is earlier
        # Chunks to pin once they are in memory, with their tokens, those that are loading first.
        self._awaited: dict[str, int] = {}
        self._loading: BoundedMap[str, None] = BoundedMap(max_entries=_MAX_LOADING)

    def pin(self, key: str, *, num_tokens: int = 0) -> bool:
        """Keep what is stored of a chunk in memory, loading it if need be; return False if that is
        impossible."""
        done = [self._pin(each, num_tokens) for each in keys_of(key) if each in self._store]
        return bool(done) and all(done)

    def _pin(self, key: str, num_tokens: int) -> bool:
        if self._store.keep(key):
            return True
        is_elsewhere = key in self._store and "memory" not in self._store.places(key)
        with self._lock:
            if not is_elsewhere or len(self._awaited) >= MAX_ENTRIES:
                return False
            self._awaited[key] = num_tokens
        return True

    def unpin(self, key: str) -> None:
        for each in keys_of(key):
            with self._lock:
                self._awaited.pop(each, None)
            self._store.release(each)

    def evict(self, key: str) -> None:
        """Remove a chunk from all places."""
        with self._lock:
            self._drop_expiry(key)
        for each in keys_of(key):
            with self._lock:
                self._awaited.pop(each, None)
            self._store.discard(each)

    def expire(self, key: str, seconds: float | None) -> bool:
        """Remove a chunk after some time; None: never. Return False if it is not stored, or too
        many have an expiry."""
        is_stored = self._is_stored(key)
        with self._lock:
            if seconds is None:
                self._drop_expiry(key)
            elif not is_stored or not self._has_place(key):
                return False
            else:
                at = self._clock() + min(seconds, MAX_SECONDS)
                own = self._expiries.setdefault(owner_of(key), {})
                self._num_expiries += key not in own
                own[key] = at
                self._next_due = min(self._next_due, at)
        return True

    def expires_in(self, key: str) -> float | None:
        with self._lock:
            at = self._expiries.get(owner_of(key), {}).get(key)
        return None if at is None else max(0.0, at - self._clock())

    def tend(self) -> None:
        now = self._clock()
        with self._lock:
            due = []
            if now >= self._next_due:
                expiries = [item for own in self._expiries.values() for item in own.items()]
                due = [key for key, at in expiries if at <= now]
                self._next_due = min((at for _, at in expiries if at > now), default=math.inf)
            awaited = dict(islice(self._awaited.items(), _MAX_LOADING))
        for key in due:
            self.evict(key)
        for key in awaited:
            self._advance(key, awaited)

    def _is_stored(self, key: str) -> bool:
        return any(each in self._store for each in keys_of(key))

    def _has_place(self, key: str) -> bool:
        """Return True if the key may have an expiry. Where all places are taken, that of an evicted
        chunk is free; else the owner with the most loses its oldest, which is removed early."""
        own = self._expiries.get(owner_of(key), {})
        if key in own or self._num_expiries < MAX_ENTRIES:
            return True
        most = max(self._expiries.values(), key=len)
        oldest = [*islice(own, _MAX_LOOKS), *islice(most, _MAX_LOOKS)]
        lost = next((each for each in oldest if not self._is_stored(each)), None)
        if lost is None and len(most) > len(own) + 1:
            lost = next(iter(most))
            for each in keys_of(lost):
                self._store.discard(each)
        if lost is not None:
            self._drop_expiry(lost)
        return lost is not None

    def _drop_expiry(self, key: str) -> None:
        """Requires the lock."""
        own = self._expiries.get(owner_of(key), {})
        self._num_expiries -= key in own
        own.pop(key, None)
        if not own:
            self._expiries.pop(owner_of(key), None)

    def _advance(self, key: str, awaited: Mapping[str, int]) -> None:
        if self._store.keep(key):
            self._forget(key)
        elif key not in self._loading:
            self._loading.put(key, None)
            self._store.prefetch({key: awaited[key]})
        elif not self._store.is_on_its_way(key):
            self._forget(key)  # nowhere, or no room

    def _forget(self, key: str) -> None:
        self._loading.pop(key)
        with self._lock:
            self._awaited.pop(key, None)
