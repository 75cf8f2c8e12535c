"""Hierarchical clustering of contexts by shared documents (RAGBoost section 4.1)."""

from ragboost.index.clustering.clusters import ClusterTree
from ragboost.index.clustering.large import EXACT_CONTEXTS, cluster

__all__ = ["EXACT_CONTEXTS", "ClusterTree", "cluster"]
