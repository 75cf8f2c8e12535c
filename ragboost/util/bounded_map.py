"""Mappings that are bounded, evicting by last use: exactly, or by halves."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class BoundedMap(Generic[K, V]):
    """A mapping that evicts its least recently used entries while a bound is exceeded.

    Not thread-safe. Iterates over its keys, least recently used first. `max_size` bounds the sizes
    given to `put`; entries expire `ttl_s` after their last use.
    """

    def __init__(
        self,
        *,
        max_entries: float = inf,
        max_size: int | None = None,
        ttl_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_entries = max_entries
        self._max_size = max_size
        self._ttl_s = ttl_s
        self._clock = clock
        # Time of last use (0.0 without a TTL), size and value; least recently used first.
        self._entries: OrderedDict[K, tuple[float, int, V]] = OrderedDict()
        self.size = 0  # total size of the entries

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def values(self) -> list[V]:
        return [value for _, _, value in list(self._entries.values())]  # a thread may add some

    def items(self) -> list[tuple[K, V]]:
        return [(key, value) for key, (_, _, value) in self._entries.items()]

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as use; None if it is absent or expired."""
        if self._ttl_s is not None:
            self.expire()
        entry = self._entries.get(key)
        if entry is None:
            return None
        self.touch(key)
        return entry[2]

    def peek(self, key: K) -> V | None:
        """Return the value of a key, neither counting as use nor expiring entries."""
        entry = self._entries.get(key)
        return None if entry is None else entry[2]

    def touch(self, key: K) -> None:
        """Count an existing entry as just used."""
        if self._ttl_s is not None:
            _, size, value = self._entries[key]
            self._entries[key] = (self._clock(), size, value)
        self._entries.move_to_end(key)

    def put(self, key: K, value: V, *, size: int = 0) -> None:
        """Keep a value as just used; evict others, and at last it, while a bound is exceeded."""
        entries = self._entries
        old = entries.get(key)
        entries[key] = (0.0 if self._ttl_s is None else self._clock(), size, value)
        if old is not None:
            self.size -= old[1]
            entries.move_to_end(key)
        elif len(entries) > self.max_entries:
            self._evict()
        self.size += size
        while self._max_size is not None and self.size > self._max_size:
            self._evict()

    def pop(self, key: K) -> V | None:
        """Remove an entry and return its value; None if it is absent."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self.size -= entry[1]
        return entry[2]

    def expire(self) -> None:
        """Remove the entries that were not used for `ttl_s`."""
        if self._ttl_s is None:
            return
        limit = self._clock() - self._ttl_s
        while self._entries and next(iter(self._entries.values()))[0] < limit:
            self._evict()

    def _evict(self) -> None:
        _, (_, size, _) = self._entries.popitem(last=False)
        self.size -= size


class Generations(Generic[K, V]):
    """A mapping in two halves, for what would be used less than keeping its order costs.

    newer  | what was used since the last turn |  when it is full, it becomes the older half, and
    older  | what was used before              |  what the older one held is forgotten

    The owner writes to `newer`, and calls `turn` when that is full. Threads may share it without a
    lock: what one adds while another one turns may be forgotten early.
    """

    __slots__ = ("newer", "older")

    def __init__(self) -> None:
        self.newer: dict[K, V] = {}
        self.older: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self.newer) + sum(key not in self.newer for key in self.older)

    def __contains__(self, key: object) -> bool:
        return key in self.newer or key in self.older

    def get(self, key: K) -> V | None:
        value = self.newer.get(key)
        return self.older.get(key) if value is None else value

    def turn(self) -> None:
        self.older, self.newer = self.newer, {}
