"""Choose the order of the documents behind a cached prefix, by the policies' names."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from ragboost.config import ORDER_POLICIES, OrderingSettings
from ragboost.errors import ConfigError
from ragboost.ordering.prior import CorpusPrior


class OrderPolicy(Protocol):
    """An order of the documents that no cached prefix determines."""

    def add(self, documents: Iterable[Hashable]) -> None:
        """Learn from the documents of a request that is sent."""

    def order(
        self,
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
        *,
        prefix: Sequence[Hashable] = (),
    ) -> list[Hashable]:
        """Sort the documents behind a prefix.

        Args:
            documents: most relevant first.
            tokens: length of each document.
            prefix: the documents before them.
        """


class RelevanceOrder:
    """The order in which the retriever gave the documents."""

    def __init__(self, prior: CorpusPrior | None = None) -> None:
        pass

    def add(self, documents: Iterable[Hashable]) -> None:
        """Learn nothing."""

    def order(
        self,
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
        *,
        prefix: Sequence[Hashable] = (),
    ) -> list[Hashable]:
        """Return the documents as they are."""
        return list(documents)


def make_order_policy(settings: OrderingSettings, prior: CorpusPrior | None = None) -> OrderPolicy:
    """Create the policy that `ordering.tail` names.

    Args:
        settings: of ordering.
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
