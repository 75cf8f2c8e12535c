"""Reuse frequency f_r: uses weighted by the computation they save (Cache-Craft section 3.3).

A hit adds 1 / max(CFO, 0.05). The paper divides by the CFO itself, which is 0 for an exact hit. As
printed, f_r does not age; a half-life is optional.
"""

import math
from collections.abc import Hashable

from ragboost.chunk_cache.eviction import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError

LEAST_CFO = 0.05


class ReuseFrequency(EvictionPolicy):
    """Ranking by f_r.

    Args:
        half_life_s: half-life of f_r in seconds; None: no decay, as printed.
    """

    def __init__(self, *, half_life_s: float | None = None) -> None:
        if half_life_s is not None and not half_life_s > 0:
            raise ChunkCacheError(f"half_life_s must be above 0, got {half_life_s}")
        self._half_life_s = half_life_s
        self._entries: dict[Hashable, tuple[float, float]] = {}  # f_r and the time it is of

    def used(self, key: Hashable, use: Use) -> None:
        value, since = self._entries.get(key, (0.0, use.now))
        gain = 1 / max(use.cfo, LEAST_CFO) if use.is_hit else 0.0
        self._entries[key] = (value * self._decay(use.now - since) + gain, use.now)

    def priority(self, key: Hashable) -> float:
        value, since = self._entries[key]
        if self._half_life_s is None:
            return value
        # log2 of the value extrapolated to time 0: all values decay alike, so the order is the same
        # at any time and needs no clock.
        return math.log2(value) + since / self._half_life_s if value else -math.inf

    def evicted(self, key: Hashable) -> None:
        self._entries.pop(key, None)

    def _decay(self, seconds: float) -> float:
        return 1.0 if self._half_life_s is None else math.exp2(-seconds / self._half_life_s)
