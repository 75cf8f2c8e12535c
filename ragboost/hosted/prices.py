"""Compute what a prompt costs at a hosted API, with and without its cache.

Prices are settings: none is built in.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ragboost.config import PriceSettings
from ragboost.wires.usage import Usage

_PER = 1_000_000


class PromptCost(NamedTuple):
    """Money for one prompt, in the currency of the prices.

    Attributes:
        cost: as the API bills it.
        uncached: without the cache, and with the documents that were not sent again.
    """

    cost: float
    uncached: float

    @property
    def saved(self) -> float:
        """Negative where writing to the cache cost more than reading saved."""
        return self.uncached - self.cost


def find_price(prices: Sequence[PriceSettings], model: str) -> PriceSettings | None:
    """Return the price with the longest beginning of a model's name; None if there is none."""
    fitting = [price for price in prices if model.startswith(price.model)]
    return max(fitting, key=lambda price: len(price.model), default=None)


def prompt_cost(price: PriceSettings, usage: Usage, *, dropped_tokens: int = 0) -> PromptCost:
    """Compute the cost of a prompt from the usage that the API reported.

    Args:
        price: of its model.
        usage: as reported; unknown counts are taken as 0.
        dropped_tokens: tokens of documents that were not sent.
    """
    prompt = usage.prompt_tokens
    cached = min(usage.cached_tokens or 0, prompt)
    written = min(usage.cache_write_tokens or 0, prompt - cached)
    long_written = min(usage.long_write_tokens or 0, written)
    weighted = (
        prompt
        - cached
        - written
        + cached * price.cached_read
        + (written - long_written) * price.write
        + long_written * price.write_1h
    )
    per_token = price.input / _PER
    return PromptCost(weighted * per_token, (prompt + dropped_tokens) * per_token)
