"""Which entry of a full cache goes: policies behind one interface, chosen by name.

Plain Python: the embedded engine's prefix cache, the chunk store's tiers and the benchmark share
them.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ragboost.chunk_cache.eviction.base import Replacement, Use
from ragboost.chunk_cache.eviction.gdsf import GDSF, PGDSF
from ragboost.chunk_cache.eviction.heat import Heat
from ragboost.chunk_cache.eviction.lacr import LACR
from ragboost.chunk_cache.eviction.lfu import LFU
from ragboost.chunk_cache.eviction.lru import LRU
from ragboost.chunk_cache.eviction.next_use import NextUse
from ragboost.chunk_cache.eviction.reuse_frequency import ReuseFrequency
from ragboost.errors import ChunkCacheError

__all__ = ["REPLACEMENTS", "Replacement", "Use", "make_replacement"]

REPLACEMENTS: Mapping[str, Callable[[], Replacement]] = MappingProxyType(
    {
        "lru": LRU,
        "lfu": LFU,
        "gdsf": GDSF,
        "pgdsf": PGDSF,
        "f_r": ReuseFrequency,
        "heat": Heat,
        "lacr": LACR,
        "next-use": NextUse,
        "next-use-lfu": lambda: NextUse(counts=True),
    }
)
"""Policies by name; Belady is not among them, since it must be told the future."""


def make_replacement(name: str) -> Replacement:
    """Return a new policy.

    Raises:
        ChunkCacheError: no policy has this name.
    """
    if name not in REPLACEMENTS:
        raise ChunkCacheError(
            f"replacement policy must be one of {', '.join(REPLACEMENTS)}, got {name!r}"
        )
    return REPLACEMENTS[name]()
