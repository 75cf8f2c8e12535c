"""Eviction policies of other systems, to measure the product's against."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ragboost.chunk_cache.eviction import LACR, EvictionPolicy, Heat
from research.eviction.gdsf import GDSF, PGDSF
from research.eviction.lfu import LFU, NextUseLFU
from research.eviction.lru import LRU
from research.eviction.next_use import NextUse
from research.eviction.reuse_frequency import ReuseFrequency

POLICIES: Mapping[str, Callable[[], EvictionPolicy]] = MappingProxyType(
    {
        "heat": Heat,
        "lacr": LACR,
        "next-use": NextUse,
        "lru": LRU,
        "lfu": LFU,
        "next-use-lfu": NextUseLFU,
        "gdsf": GDSF,
        "pgdsf": PGDSF,
        "f_r": ReuseFrequency,
    }
)
"""The product's policies and those of this package by name."""
