"""The context index: the document sequences that a prefix cache holds (RAGBoost section 4)."""

from ragboost.index.context_index import ContextIndex, IndexEntry, PrefixMatch
from ragboost.index.context_tree import Seat
from ragboost.index.directory import Clearings, Holders, PrefixDirectory
from ragboost.index.eviction import EvictionForecast
from ragboost.index.node import Node

__all__ = [
    "Clearings",
    "ContextIndex",
    "EvictionForecast",
    "Holders",
    "IndexEntry",
    "Node",
    "PrefixDirectory",
    "PrefixMatch",
    "Seat",
]
