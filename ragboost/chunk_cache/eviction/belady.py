"""Belady's MIN: the entry whose next use is farthest away goes first. Needs the whole future.

The bound that other policies are measured against. In a tree of prefixes the farthest entry is
always a leaf, since whoever uses a node uses its ancestors. Entries are evicted whole, so that with
unequal sizes it is a bound up to the packing.
"""

import math
from collections import deque
from collections.abc import Collection, Hashable, Iterable

from ragboost.chunk_cache.eviction.base import Replacement, Use


class Belady(Replacement):
    """Priority is minus the number of the request that uses the entry next.

    Args:
        requests: the keys that each request will use, in the order in which they will be served;
            `Use.now` is the number of the request, the first one is 1.
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
