"""Hints that tell the model about reordering and de-duplication (RAGBoost sections 5.3 and 6)."""

from ragboost.hints.labels import label_documents
from ragboost.hints.location import location_hints
from ragboost.hints.order import order_hint

__all__ = ["label_documents", "location_hints", "order_hint"]
