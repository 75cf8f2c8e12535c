"""Ray: plan a Ray Data job, and serve the proxy: the extra `ray`."""

from ragboost.integrations.ray.data import boosted
from ragboost.integrations.ray.serve import deploy

__all__ = ["boosted", "deploy"]
