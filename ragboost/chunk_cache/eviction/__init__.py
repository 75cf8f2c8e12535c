"""Policies that choose the entry to evict from a full cache, by name: plain Python, for prefix
caches, chunk stores and dependency paths."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ragboost.chunk_cache.eviction.heat import Heat
from ragboost.chunk_cache.eviction.lacr import LACR
from ragboost.chunk_cache.eviction.lru import LRU, NextUse
from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError

__all__ = ["EVICTION_POLICIES", "EvictionPolicy", "Use", "make_eviction_policy"]

EVICTION_POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = MappingProxyType(
    {
        "lru": LRU,
        "heat": Heat,
        "lacr": LACR,
        "next-use": NextUse,
    }
)


def make_eviction_policy(name: str) -> EvictionPolicy:
    if name not in EVICTION_POLICIES:
        raise ChunkCacheError(
            f"eviction policy must be one of {', '.join(EVICTION_POLICIES)}, got {name!r}"
        )
    return EVICTION_POLICIES[name]()
