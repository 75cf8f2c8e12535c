"""Create the policy that orders documents behind a cached prefix, by its name."""

from importlib import import_module

from ragboost.config import ORDER_POLICIES, OrderingSettings
from ragboost.ordering.request import OrderPolicy


def make_order_policy(settings: OrderingSettings) -> OrderPolicy:
    """Create the policy that `ordering.tail` names."""
    module, _, kind = ORDER_POLICIES[settings.tail].partition(":")
    policy: OrderPolicy = getattr(import_module(module), kind)()
    return policy
