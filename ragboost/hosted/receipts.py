"""Write receipts: what the caches saved on one request, in tokens and in money."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ragboost.config import PriceSettings
from ragboost.wires.usage import Usage

_PER = 1_000_000
_DIGITS = 9  # of money: a token costs about 0.000001


class PromptCost(NamedTuple):
    """Money for one prompt, in the currency of the prices."""

    cost: float  # as the API bills it
    uncached: float  # without the cache, and with the documents that were not sent again

    @property
    def saved(self) -> float:
        """Negative where writing to the cache cost more than reading saved."""
        return self.uncached - self.cost


class PromptZones(NamedTuple):
    """Tokens of a prompt behind its cached prefix, where the backend reuses chunks."""

    bought_tokens: int  # computed exactly, though they might have been reused: a prefix for others
    reused_tokens: int
    recomputed_tokens: int

    @classmethod
    def of(cls, usage: Usage, *, bought_tokens: int) -> "PromptZones | None":
        """Return the zones of a response; None if it does not report chunk reuse."""
        bought = usage.bought_tokens(bought_tokens)
        if bought is None or usage.reused_tokens is None:
            return None
        return cls(bought, usage.reused_tokens, usage.recomputed_tokens or 0)


class Receipt(NamedTuple):
    """Tokens and money that one request used and saved."""

    prompt_tokens: int  # as reported, like the cached ones
    cached_tokens: int | None
    predicted_cached_tokens: int  # before the request was sent; 0 if unknown
    # Of documents that the payload has already and that were not sent, as the index counts them.
    dropped_tokens: int
    cost: PromptCost | None = None  # with a price for the model
    # The origins of the others where chunks are reused; the rest of the prompt was computed.
    zones: PromptZones | None = None
    advice: str = ""  # what keeps the prompt from being cached, if that is known
    cache_break: Mapping[str, Any] | None = None  # why it is not the continuation of another

    @property
    def saved_tokens(self) -> int:
        return (self.cached_tokens or 0) + self.dropped_tokens

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "predicted_cached_tokens": self.predicted_cached_tokens,
            "dropped_tokens": self.dropped_tokens,
            "saved_tokens": self.saved_tokens,
        }
        if self.zones is not None:
            fields |= self.zones._asdict()
        if self.cost is not None:
            fields["cost"] = round(self.cost.cost, _DIGITS)
            fields["uncached_cost"] = round(self.cost.uncached, _DIGITS)
            fields["saved_cost"] = round(self.cost.saved, _DIGITS)
        if self.advice:
            fields["advice"] = self.advice
        if self.cache_break is not None:
            fields["cache_break"] = self.cache_break
        return msgspec.json.encode(fields)


def find_price(prices: Sequence[PriceSettings], model: str) -> PriceSettings | None:
    """Return the price with the longest beginning of a model's name; None if there is none."""
    fitting = [price for price in prices if model.startswith(price.model)]
    return max(fitting, key=lambda price: len(price.model), default=None)


def prompt_cost(price: PriceSettings, usage: Usage, *, dropped_tokens: int = 0) -> PromptCost:
    """Compute the cost of a prompt from the usage that the API reported; unknown counts are 0."""
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
