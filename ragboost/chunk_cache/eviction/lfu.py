"""LFU: evict the entry with the fewest uses while cached."""

from collections.abc import Hashable

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use


class LFU(EvictionPolicy):
    """Ranking by the number of uses since the entry was stored."""

    def __init__(self) -> None:
        self._count: dict[Hashable, int] = {}

    def used(self, key: Hashable, use: Use) -> None:
        self._count[key] = self._count.get(key, 0) + 1

    def priority(self, key: Hashable) -> float:
        return self._count[key]

    def evicted(self, key: Hashable) -> None:
        self._count.pop(key, None)
