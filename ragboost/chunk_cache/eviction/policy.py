"""The interface of eviction policies: they are told of every use, and rank the entries.

Knows keys, sizes and costs. Does not know what the entries are (blocks of a prefix cache, chunks,
nodes of a tree), which of them may be evicted, or how much room there is.
"""

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
    """A ranking of the entries of one cache. Not thread-safe.

    The cache calls `used` when a request uses or stores an entry, and `evicted` after an eviction.
    It evicts the evictable entry with the lowest `priority` (in a tree of prefixes: a leaf), of
    equal ones the least recently used. A policy forgets an entry with `evicted`.
    """

    sees_queue = False  # `look_ahead` has an effect; callers may skip it otherwise

    @abstractmethod
    def used(self, key: Hashable, use: Use) -> None:
        """Record a use."""

    @abstractmethod
    def priority(self, key: Hashable) -> float:
        """Return the rank of a cached entry; the lowest is evicted first.

        Ranks are comparable between entries at one moment only, not over time.
        """

    @abstractmethod
    def evicted(self, key: Hashable) -> None:
        """Forget an entry. Unknown keys are ignored."""

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        """Replace the known queue of waiting requests.

        Args:
            waiting: keys that each request will use, cached or not; the next request first.
        """
        return
