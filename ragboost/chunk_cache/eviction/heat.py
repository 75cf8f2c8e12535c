"""Heat: decaying uses, times the cost to recompute a byte (FusionRAG section 4.2). The paper does
not define heat; here a use turns h of t0 into h * 2^(-(t - t0) / tau) + 1."""

import math
from collections.abc import Hashable

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError

TAU_S = 600.0
"""Default half-life of heat in seconds."""


def warmed(heat: float, idle_s: float, *, tau_s: float = TAU_S) -> float:
    return cooled(heat, idle_s, tau_s=tau_s) + 1


def cooled(heat: float, idle_s: float, *, tau_s: float = TAU_S) -> float:
    return heat * math.exp2(-max(0.0, idle_s) / tau_s)


class Heat(EvictionPolicy):
    """Ranking by log2(heat * cost / size), all extrapolated to one moment: they decay alike."""

    def __init__(self, *, tau_s: float = TAU_S) -> None:
        if not tau_s > 0:
            raise ChunkCacheError(f"tau_s must be above 0, got {tau_s}")
        self._tau_s = tau_s
        self._entries: dict[Hashable, tuple[float, float, float]] = {}  # heat, time, priority

    def used(self, key: Hashable, use: Use) -> None:
        heat, since, _ = self._entries.get(key, (0.0, use.now, 0.0))
        heat = warmed(heat, use.now - since, tau_s=self._tau_s)
        value = math.log2(heat) + math.log2(max(use.cost / use.size, 1e-300))
        self._entries[key] = (heat, use.now, value + use.now / self._tau_s)

    def priority(self, key: Hashable) -> float:
        return self._entries[key][2]

    def evicted(self, key: Hashable) -> None:
        self._entries.pop(key, None)

    def heat(self, key: Hashable, now: float) -> float:
        heat, since, _ = self._entries.get(key, (0.0, now, 0.0))
        return cooled(heat, now - since, tau_s=self._tau_s)
