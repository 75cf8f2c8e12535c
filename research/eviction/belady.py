"""Belady's MIN: evict the entry whose next use is farthest away.

The upper bound of the hit rate, which needs the whole future. In a tree of prefixes the farthest
entry is always a leaf, since a request that uses a node uses its ancestors. Entries are evicted as
a whole, so that for unequal sizes it is a bound up to the packing.
"""

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use


class Belady(EvictionPolicy):
    """Ranking by minus the number of the next request that uses the entry.

    Args:
        requests: keys that each request will use, in the order of service; `Use.now` is the number
            of the request, from 1.
    """

    def __init__(self, requests: Iterable[Collection[Hashable]]) -> None:
        self._uses: dict[Hashable, deque[int]] = {}
        for number, keys in enumerate(requests, start=1):
            for key in set(keys):
                self._uses.setdefault(key, deque()).append(number)

    def used(self, key: Hashable, use: Use) -> None:
        uses = self._uses[key]
        while uses and uses[0] <= use.now:
            uses.popleft()

    def priority(self, key: Hashable) -> float:
        uses = self._uses[key]
        return -uses[0] if uses else -math.inf

    def evicted(self, key: Hashable) -> None:
        return
