"""LRU: evict the least recently used entry."""

from collections.abc import Hashable

from ragboost.chunk_cache.eviction import EvictionPolicy, Use


class LRU(EvictionPolicy):
    def __init__(self) -> None:
        self._last: dict[Hashable, float] = {}

    def used(self, key: Hashable, use: Use) -> None:
        self._last[key] = use.now

    def priority(self, key: Hashable) -> float:
        return self._last[key]

    def evicted(self, key: Hashable) -> None:
        self._last.pop(key, None)
