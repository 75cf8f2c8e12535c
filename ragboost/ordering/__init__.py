"""Order in a request, plan over a batch, release between requests (RAGBoost section 5)."""

from ragboost.ordering.batch import BatchPlan, plan_batch
from ragboost.ordering.popularity import RecentContexts
from ragboost.ordering.release import release_order
from ragboost.ordering.request import Order, order_documents
from ragboost.ordering.window import WindowPlan, plan_window

__all__ = [
    "BatchPlan",
    "Order",
    "RecentContexts",
    "WindowPlan",
    "order_documents",
    "plan_batch",
    "plan_window",
    "release_order",
]
