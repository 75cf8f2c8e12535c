"""The context index: the document sequences that a prefix cache holds (RAGBoost section 4)."""

from ragboost.index.context_index import ContextIndex
from ragboost.index.node import Node
from ragboost.index.search import PrefixMatch

__all__ = ["ContextIndex", "Node", "PrefixMatch"]
