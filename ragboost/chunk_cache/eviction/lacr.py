"""LACR: past uses of an entry and its uses by waiting requests (DepCache eq. 6), alpha * H + (1 -
alpha) * F. The paper adds an unbounded count to a sum; here both are scaled to [0, 1]."""

from collections.abc import Collection, Hashable, Sequence

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError

ALPHA = 0.2


def future_sums(waiting: Sequence[Collection[Hashable]]) -> dict[Hashable, float]:
    """Return for each key the sum of 1 - i / W over the waiting requests i = 0 .. W-1 using it."""
    sums: dict[Hashable, float] = {}
    for i, keys in enumerate(waiting):
        weight = 1 - i / len(waiting)
        for key in keys:
            sums[key] = sums.get(key, 0.0) + weight
    return sums


class LACR(EvictionPolicy):
    """Ranking by a weighted sum of past and future uses; `alpha` (0 to 1) weighs the past."""

    sees_queue = True

    def __init__(self, *, alpha: float = ALPHA) -> None:
        if not 0 <= alpha <= 1:
            raise ChunkCacheError(f"alpha must be from 0 to 1, got {alpha}")
        self._alpha = alpha
        self._count: dict[Hashable, int] = {}
        self._future: dict[Hashable, float] = {}
        self._most_used: int | None = 0
        self._most_future = 0.0

    def used(self, key: Hashable, use: Use) -> None:
        count = self._count[key] = self._count.get(key, 0) + 1
        if self._most_used is not None:
            self._most_used = max(self._most_used, count)

    def priority(self, key: Hashable) -> float:
        if self._most_used is None:
            self._most_used = max(self._count.values())
        history = self._count[key] / self._most_used
        future = self._future.get(key, 0.0) / (self._most_future or 1.0)
        return self._alpha * history + (1 - self._alpha) * future

    def evicted(self, key: Hashable) -> None:
        count = self._count.pop(key, 0)
        if count == self._most_used:
            self._most_used = None

    def look_ahead(self, waiting: Sequence[Collection[Hashable]]) -> None:
        self._future = future_sums(waiting)
        self._most_future = max(self._future.values(), default=0.0)
