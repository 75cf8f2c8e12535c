"""Hierarchical clustering of contexts by shared documents (RAGBoost section 4.1)."""

from ragboost.index.clustering.base import ClusterTree
from ragboost.index.clustering.cluster import Linkage, cluster

__all__ = ["ClusterTree", "Linkage", "cluster"]
