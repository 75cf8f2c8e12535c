"""Greedy dual by size and frequency, plain (GDSF) and with the cost in the prefix (PGDSF).

Priority = clock + frequency * cost / size. The clock is the highest priority evicted so far, so
that what was valuable long ago ages. GDSF takes the cost of the newest use; PGDSF (RAGCache) the
mean over the uses that had to compute the entry, each behind its own cached prefix.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from ragboost.chunk_cache.eviction.base import Replacement, Use


@dataclass(slots=True)
class _Entry:
    frequency: int = 0
    cost_per_size: float = 0.0
    num_computed: int = 0
    priority: float = 0.0


class GDSF(Replacement):
    """See the module."""

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
    """See the module. A hit has nothing to say about the cost, unless nothing has been computed
    yet."""

    def _price(self, entry: _Entry, use: Use) -> None:
        if use.is_hit and entry.num_computed:
            return
        entry.num_computed += 1
        entry.cost_per_size += (use.cost / use.size - entry.cost_per_size) / entry.num_computed
