"""Write receipts: what the caches saved on one request, in tokens and in money."""

from typing import NamedTuple

import msgspec

from ragboost.config import PriceSettings
from ragboost.hosted.prices import PromptCost, prompt_cost
from ragboost.wires.usage import Usage

_DIGITS = 9  # of money: a token costs about 0.000001


class Receipt(NamedTuple):
    """Tokens and money that one request used and saved.

    Attributes:
        prompt_tokens: as reported.
        cached_tokens: of them, read from the cache, as reported; None if not reported.
        predicted_cached_tokens: expected before the request was sent; 0 if unknown.
        dropped_tokens: length of the documents that the payload has already and that were
            therefore not sent, as the index counts it.
        cost: with a price for the model; else None.
    """

    prompt_tokens: int
    cached_tokens: int | None
    predicted_cached_tokens: int
    dropped_tokens: int
    cost: PromptCost | None = None

    @classmethod
    def of(
        cls, usage: Usage, *, predicted: int, dropped_tokens: int, price: PriceSettings | None
    ) -> "Receipt":
        """Make the receipt of a response."""
        cost = None
        if price is not None:
            cost = prompt_cost(price, usage, dropped_tokens=dropped_tokens)
        return cls(usage.prompt_tokens, usage.cached_tokens, predicted, dropped_tokens, cost)

    @property
    def saved_tokens(self) -> int:
        """Tokens that were not computed: read from the cache, or not sent."""
        return (self.cached_tokens or 0) + self.dropped_tokens

    def encode(self) -> bytes:
        """Return one line of JSON, in ASCII."""
        fields: dict[str, int | float | None] = {
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "predicted_cached_tokens": self.predicted_cached_tokens,
            "dropped_tokens": self.dropped_tokens,
            "saved_tokens": self.saved_tokens,
        }
        if self.cost is not None:
            fields["cost"] = round(self.cost.cost, _DIGITS)
            fields["uncached_cost"] = round(self.cost.uncached, _DIGITS)
            fields["saved_cost"] = round(self.cost.saved, _DIGITS)
        return msgspec.json.encode(fields)
