"""Create the policy that orders documents behind a cached prefix, by its name."""

from importlib import import_module

from ragboost.config import ORDER_POLICIES, OrderingSettings
from ragboost.errors import ConfigError
from ragboost.ordering.prior import CorpusPrior
from ragboost.ordering.request import OrderPolicy


def make_order_policy(settings: OrderingSettings, prior: CorpusPrior | None = None) -> OrderPolicy:
    """Create the policy that `ordering.tail` names.

    Args:
        prior: shared with other policies; None: read from `ordering.prior`, if that is set.

    Raises:
        ConfigError: the prior cannot be read.
    """
    module, _, kind = ORDER_POLICIES[settings.tail].partition(":")
    policy: OrderPolicy = getattr(import_module(module), kind)(prior or read_prior(settings))
    return policy


def read_prior(settings: OrderingSettings) -> CorpusPrior | None:
    """Read the prior that the settings name; None if they name none.

    Raises:
        ConfigError: it cannot be read, or the tail does not use it.
    """
    if settings.prior is None:
        return None
    if settings.tail == "relevance":
        raise ConfigError('ordering.prior needs ordering.tail = "popularity"')
    return CorpusPrior.read(settings.prior)
