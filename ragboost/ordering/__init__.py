"""The order of documents in a request and of requests between each other (RAGBoost section 5)."""

from ragboost.ordering.batch import BatchPlan, group_turns, plan_batch
from ragboost.ordering.popularity import RecentContexts, make_order_policy
from ragboost.ordering.rent_or_buy import Purchase, RentLedger
from ragboost.ordering.request import (
    Order,
    OrderPolicy,
    order_documents,
    order_exact_first,
)
from ragboost.ordering.window import NextRequest, plan_next

__all__ = [
    "BatchPlan",
    "NextRequest",
    "Order",
    "OrderPolicy",
    "Purchase",
    "RecentContexts",
    "RentLedger",
    "group_turns",
    "make_order_policy",
    "order_documents",
    "order_exact_first",
    "plan_batch",
    "plan_next",
]
