"""Which reused tokens to compute again: policies by name, loaded when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ragboost.errors import ChunkCacheError

if TYPE_CHECKING:
    from ragboost.chunk_cache.selection.base import Policy

POLICIES = {
    "full": "baseline:Full",
    "reuse": "baseline:Reuse",
    "random": "baseline:Random",
    "oracle": "baseline:Oracle",
    "epic": "epic:ChunkHeads",
    "cacheblend": "cacheblend:KeyDeviation",
    "cacheblend-v": "cacheblend:ValueDeviation",
    "cachecraft": "cachecraft:InterAttention",
    "cachecraft-peak": "cachecraft:PeakAttention",
    "a3": "a3:ShallowAttention",
    "fusionrag": "fusionrag:LastLayerAttention",
    "fusionrag-literal": "fusionrag:QuestionAlone",
    "mean-layers": "mean_layers:MeanLayers",
    "two-stage": "two_stage:TwoStage",
    "gradual": "gradual:Gradual",
    "hybrid": "hybrid:Hybrid",
    "hybrid-offline": "hybrid:HybridOffline",
}
DEFAULT_POLICY = "gradual"
DEFAULT_RATIO = 0.15


def make_policy(name: str, **options: Any) -> "Policy":
    """Return the policy of this name.

    Args:
        name: one of `POLICIES`.
        options: for the policy's constructor, such as `seed` of `random`.

    Raises:
        ChunkCacheError: an unknown name.
    """
    if name not in POLICIES:
        raise ChunkCacheError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    module, _, factory = POLICIES[name].partition(":")
    package = import_module(f"ragboost.chunk_cache.selection.{module}")
    policy: Policy = getattr(package, factory)(**options)
    return policy
