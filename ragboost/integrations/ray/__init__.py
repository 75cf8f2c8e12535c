"""Ray: plan a Ray Data job or a batch file, and serve the proxy: `pip install '.[ray]'`."""

from ragboost.integrations.ray.batch import run_batch_on_ray
from ragboost.integrations.ray.data import boosted
from ragboost.integrations.ray.serve import deploy

__all__ = ["boosted", "deploy", "run_batch_on_ray"]
