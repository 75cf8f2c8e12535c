"""Greedy dual by size and frequency (GDSF), and its variant for prefixes (PGDSF, RAGCache).

Priority = clock + frequency * cost / size. The clock is the highest priority evicted so far, which
ages old entries. GDSF takes the cost of the last use; PGDSF the mean over the uses that computed
the entry, each after its own cached prefix.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from ragboost.chunk_cache.eviction import EvictionPolicy, Use


@dataclass(slots=True)
class _Entry:
    frequency: int = 0
    cost_per_size: float = 0.0
    num_computed: int = 0
    priority: float = 0.0


class GDSF(EvictionPolicy):
    """Ranking with the cost of the last use."""

    def __init__(self) -> None:
        self.clock = 0.0
        self._entries: dict[Hashable, _Entry] = {}

    def used(self, key: Hashable, use: Use) -> None:
        entry = self._entries.setdefault(key, _Entry())
        entry.frequency += 1
        self._price(entry, use)
        entry.priority = self.clock + entry.frequency * entry.cost_per_size

    def priority(self, key: Hashable) -> float:
        return self._entries[key].priority

    def evicted(self, key: Hashable) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.clock = max(self.clock, entry.priority)

    def _price(self, entry: _Entry, use: Use) -> None:
        entry.cost_per_size = use.cost / use.size


class PGDSF(GDSF):
    """Ranking with the mean cost of the uses that computed the entry; of a hit only if there is
    none."""

    def _price(self, entry: _Entry, use: Use) -> None:
        if use.is_hit and entry.num_computed:
            return
        entry.num_computed += 1
        entry.cost_per_size += (use.cost / use.size - entry.cost_per_size) / entry.num_computed
