"""The context index: the document sequences that a prefix cache holds (RAGBoost section 4)."""

from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node
from ragboost.index.search import Match

__all__ = ["ContextIndex", "Match", "Node"]
