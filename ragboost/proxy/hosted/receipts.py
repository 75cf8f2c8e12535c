"""Write receipts: what the caches saved on one request, in tokens and in money."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ragboost.config import PriceSettings
from ragboost.requests.formats import Detection
from ragboost.requests.wires.usage import Usage

_PER = 1_000_000
_DIGITS = 9  # of money: a token costs about 0.000001


class PromptCost(NamedTuple):
    """Money for one prompt, in the currency of the prices."""

    cost: float  # as the API bills it
    uncached: float  # without the cache, and with the documents that were not sent again


def write_receipt(
    usage: Usage,
    *,
    detection: Detection,
    predicted_tokens: int,
    dropped_tokens: int,
    saved_tokens: float,
    bought_tokens: int,
    cost: PromptCost | None = None,
    cache_break: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the JSON object that says what one request used and saved.

    Args:
        detection: what was seen of its documents.
        predicted_tokens: cached ones, before the request was sent; 0 if unknown.
        dropped_tokens: of documents that the payload has already and that were not sent, as the
            index counts them.
        saved_tokens: that were not computed because of RAGBoost, estimated.
        bought_tokens: see `Usage.bought_tokens`.
        cost: with a price for the model.
        cache_break: why it is not the continuation of another.
    """
    fields: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "predicted_cached_tokens": predicted_tokens,
        "dropped_tokens": dropped_tokens,
        "saved_tokens": round(saved_tokens),
        "detection": detection.name,
        "documents": detection.num_documents,
    }
    if detection.frame:
        fields["frame"] = detection.frame
    if (bought := usage.bought_tokens(bought_tokens)) is not None:
        fields["bought_tokens"] = bought
        fields["reused_tokens"] = usage.reused_tokens
        fields["recomputed_tokens"] = usage.recomputed_tokens or 0
    if cost is not None:
        fields["cost"] = round(cost.cost, _DIGITS)
        fields["uncached_cost"] = round(cost.uncached, _DIGITS)
    if cache_break is not None:
        fields["cache_break"] = cache_break
    return msgspec.json.encode(fields)


def find_price(prices: Sequence[PriceSettings], model: str) -> PriceSettings | None:
    """Return the price with the longest beginning of a model's name; None if there is none."""
    fitting = [price for price in prices if model.startswith(price.model)]
    return max(fitting, key=lambda price: len(price.model), default=None)


def cost_of(
    prices: Sequence[PriceSettings], model: str, usage: Usage, *, dropped_tokens: int
) -> PromptCost | None:
    """Return the cost of a prompt; None without a price for its model."""
    price = find_price(prices, model) if prices else None
    return prompt_cost(price, usage, dropped_tokens=dropped_tokens) if price is not None else None


def lost_cost(price: PriceSettings, lost_tokens: int) -> float:
    """Return what tokens cost that are computed again, beyond what reading them from the cache
    does."""
    return lost_tokens * price.input * (1 - price.cached_read) / _PER


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
