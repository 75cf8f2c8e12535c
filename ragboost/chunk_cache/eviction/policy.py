"""The interface of eviction policies. Knows keys, sizes and costs. Does not know what the entries
are, which may be evicted, or how much room there is."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    now: float  # seconds on the caller's clock, non-decreasing from use to use
    size: float  # tokens or bytes, above 0; the same unit for all entries of a cache
    cost: float  # seconds to compute the entry in this request
    is_hit: bool  # the entry was cached; False: this use stores it
    # share of its tokens that reuse recomputes (Cache-Craft eq. 12); 0 for an exact hit
    cfo: float = 0.0


class EvictionPolicy(ABC):
    """A ranking of the entries of one cache; not thread-safe. The cache evicts the evictable entry
    (in a tree: a leaf) with the lowest `priority`, of equal ones the least recently used."""

    sees_queue = False  # `look_ahead` has an effect; callers may skip it otherwise

    @abstractmethod
    def used(self, key: Hashable, use: Use) -> None: ...

    @abstractmethod
    def priority(self, key: Hashable) -> float:
        """Return the rank of a cached entry, comparable with others at one moment only."""

    @abstractmethod
    def evicted(self, key: Hashable) -> None: ...

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        """Replace the queue: the keys that each waiting request will use, the next first."""
        return
