"""LFU: evict the entry with the fewest uses while cached; and below what the queue will use."""

from collections.abc import Hashable

from ragboost.chunk_cache.eviction import EvictionPolicy, Use
from research.eviction.next_use import NextUse


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


class NextUseLFU(NextUse):
    """Next use, but history is the number of uses on top of the highest evicted history (ageing),
    not the last use."""

    def __init__(self) -> None:
        super().__init__()
        self._count: dict[Hashable, int] = {}
        self._clock = 0.0

    def used(self, key: Hashable, use: Use) -> None:
        count = self._count[key] = self._count.get(key, 0) + 1
        self._history[key] = self._clock + count

    def evicted(self, key: Hashable) -> None:
        self._count.pop(key, None)
        self._clock = max(self._clock, self._history.get(key, 0.0))
        super().evicted(key)
