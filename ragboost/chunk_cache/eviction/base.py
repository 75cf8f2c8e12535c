"""What a replacement policy is: it is told of every use, and says which entry is worth least.

Knows keys, sizes and costs. Does not know what the entries are (blocks of a prefix cache, chunks,
nodes of a tree), which of them may go now, or how much room there is.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Use:
    """One use of an entry by a request.

    Attributes:
        now: seconds on the caller's clock; never decreases from one use to the next.
        size: tokens or bytes, the same unit for all entries of a cache; above 0.
        cost: seconds that computing the entry takes (took, where it was absent) in this request.
        is_hit: whether it was in the cache; False: it is stored with this use.
        cfo: share of its tokens that reuse computes again (Cache-Craft eq. 12); 0: an exact hit.
    """

    now: float
    size: float
    cost: float
    is_hit: bool
    cfo: float = 0.0


class Replacement(ABC):
    """Ranks the entries of one cache.

    The cache calls `used` when a request uses or stores an entry, `evicted` when it has gone, and
    evicts the entry with the lowest `priority` among those that may go (in a tree of prefixes: the
    leaves); of equal ones the least recently used. What a policy knows of an entry it forgets with
    `evicted`. Not safe to use from several threads.

    Attributes:
        sees_queue: whether `look_ahead` changes anything, so that callers may save themselves it.
    """

    sees_queue = False

    @abstractmethod
    def used(self, key: Hashable, use: Use) -> None:
        """Take note of a use."""

    @abstractmethod
    def priority(self, key: Hashable) -> float:
        """Return the rank of an entry that was used since it was last evicted: low ones go first.

        Comparable between entries at one moment only, not over time.
        """

    @abstractmethod
    def evicted(self, key: Hashable) -> None:
        """Forget an entry. Unknown keys are ignored."""

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        """Learn what the waiting requests will use, the next one first.

        Args:
            waiting: the keys that each will use, stored or not; replaces what was known before.
        """
        return
