"""Policies that select the reused tokens to recompute, by name, imported on demand."""

from importlib import import_module
from typing import TYPE_CHECKING

from ragboost.errors import ChunkCacheError

if TYPE_CHECKING:
    from ragboost.chunk_cache.selection.policy import SelectionPolicy

POLICIES = {
    "full": "policy:Full",
    "reuse": "policy:Reuse",
    "epic": "reused:Epic",
    "cacheblend": "fresh:CacheBlend",
    "cacheblend-v": "fresh:CacheBlendValues",
    "cachecraft": "cachecraft:CacheCraft",
    "a3": "fresh:A3",
    "fusionrag": "reused:FusionRAG",
    "mean-layers": "reused:MeanLayers",
    "anchored": "reused:Anchored",
    "gradual": "fresh:Gradual",
}
MEASURED = frozenset({"cachecraft"})
"""Policies that need measurements stored with each chunk, see `ChunkReuse.measure`."""
DEFAULT_POLICY = "anchored"
DEFAULT_RATIO = 0.15


def make_policy(name: str) -> "SelectionPolicy":
    if name not in POLICIES:
        raise ChunkCacheError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    module, _, factory = POLICIES[name].partition(":")
    package = import_module(f"ragboost.chunk_cache.selection.{module}")
    policy: SelectionPolicy = getattr(package, factory)()
    return policy
