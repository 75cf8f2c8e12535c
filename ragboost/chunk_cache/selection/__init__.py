"""Policies that select the reused tokens to recompute, by name, imported on demand."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragboost.errors import ChunkCacheError

if TYPE_CHECKING:
    from ragboost.chunk_cache.selection.policy import SelectionPolicy

POLICIES = {
    "full": "baseline:Full",
    "reuse": "baseline:Reuse",
    "random": "baseline:Random",
    "epic": "epic:Epic",
    "cacheblend": "cacheblend:CacheBlend",
    "cacheblend-v": "cacheblend:CacheBlendValues",
    "cachecraft": "cachecraft:CacheCraft",
    "a3": "a3:A3",
    "fusionrag": "fusionrag:FusionRAG",
    "mean-layers": "fusionrag:MeanLayers",
    "anchored": "anchored:Anchored",
    "gradual": "gradual:Gradual",
    "hybrid": "hybrid:Hybrid",
    "hybrid-offline": "hybrid:HybridOffline",
}
MEASURED = frozenset({"hybrid-offline", "cachecraft"})
"""Policies that need measurements stored with each chunk, see `eval.prime`."""
DEFAULT_POLICY = "anchored"
DEFAULT_RATIO = 0.15


def make_policy(name: str, **options: Any) -> "SelectionPolicy":
    """Create the policy of this name.

    Args:
        options: arguments of the policy's constructor, such as `seed` of `random`.
    """
    if name not in POLICIES:
        raise ChunkCacheError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    module, _, factory = POLICIES[name].partition(":")
    package = import_module(f"ragboost.chunk_cache.selection.{module}")
    policy: SelectionPolicy = getattr(package, factory)(**options)
    return policy
