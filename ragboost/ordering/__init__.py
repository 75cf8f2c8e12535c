"""The order of documents in a request and of requests between each other (RAGBoost section 5)."""

from ragboost.ordering.batch import BatchPlan, plan_batch, release_order
from ragboost.ordering.popularity import RecentContexts
from ragboost.ordering.prior import CorpusPrior, read_prior
from ragboost.ordering.request import Order, order_documents
from ragboost.ordering.turns import group_turns
from ragboost.ordering.window import WindowPlan, plan_next, plan_window

__all__ = [
    "BatchPlan",
    "CorpusPrior",
    "Order",
    "RecentContexts",
    "WindowPlan",
    "group_turns",
    "order_documents",
    "plan_batch",
    "plan_next",
    "plan_window",
    "read_prior",
    "release_order",
]
