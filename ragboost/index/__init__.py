"""The context index: the document sequences that a prefix cache holds (RAGBoost section 4)."""

from ragboost.index.context_index import ContextIndex, IndexEntry
from ragboost.index.eviction import EvictionForecast
from ragboost.index.node import Node
from ragboost.index.search import CachedPrefix, PrefixMatch

__all__ = ["CachedPrefix", "ContextIndex", "EvictionForecast", "IndexEntry", "Node", "PrefixMatch"]
