"""Policies that choose the entry to evict from a full cache: of chunks, of dependency paths.
Know keys, sizes and costs. Do not know what the entries are, or which may be evicted."""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

TAU_S = 600.0
"""Half-life of heat in seconds."""
ALPHA = 0.2
"""Weight of the past in LACR."""


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


class Heat(EvictionPolicy):
    """Decaying uses times the cost to recompute a byte (FusionRAG section 4.2). The paper does not
    define heat; here a use turns h of t0 into h * 2^(-(t - t0) / tau) + 1. Ranks are log2(heat *
    cost / size), extrapolated to one moment: all decay alike."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[float, float, float]] = {}  # heat, time, priority

    def used(self, key: Hashable, use: Use) -> None:
        heat, since, _ = self._entries.get(key, (0.0, use.now, 0.0))
        heat = heat * math.exp2(-max(0.0, use.now - since) / TAU_S) + 1
        value = math.log2(heat) + math.log2(max(use.cost / use.size, 1e-300))
        self._entries[key] = (heat, use.now, value + use.now / TAU_S)

    def priority(self, key: Hashable) -> float:
        return self._entries[key][2]

    def evicted(self, key: Hashable) -> None:
        self._entries.pop(key, None)


class LACR(EvictionPolicy):
    """Past uses of an entry and its uses by waiting requests, alpha * H + (1 - alpha) * F (DepCache
    eq. 6). The paper adds an unbounded count to a sum; here both are scaled to [0, 1]."""

    sees_queue = True

    def __init__(self) -> None:
        self._count: dict[Hashable, int] = {}
        self._future: dict[Hashable, float] = {}
        self._most_used: int | None = 0

    def used(self, key: Hashable, use: Use) -> None:
        count = self._count[key] = self._count.get(key, 0) + 1
        if self._most_used is not None:
            self._most_used = max(self._most_used, count)

    def priority(self, key: Hashable) -> float:
        if self._most_used is None:
            self._most_used = max(self._count.values())
        history = self._count[key] / self._most_used
        return ALPHA * history + (1 - ALPHA) * self._future.get(key, 0.0)

    def evicted(self, key: Hashable) -> None:
        count = self._count.pop(key, 0)
        if count == self._most_used:
            self._most_used = None

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        sums: defaultdict[Hashable, float] = defaultdict(float)
        for i, keys in enumerate(waiting):
            for key in keys:
                sums[key] += 1 - i / len(waiting)
        most = max(sums.values(), default=1.0)
        self._future = {key: value / most for key, value in sums.items()}
