"""Write receipts: what the caches saved on one request, in tokens."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ragboost.requests.formats import Detection
from ragboost.requests.wires.usage import Usage


def write_receipt(
    usage: Usage,
    *,
    detection: Detection,
    predicted_tokens: int,
    dropped_tokens: int,
    saved_tokens: float,
    bought_tokens: int,
    cache_break: Mapping[str, Any] | None = None,
) -> bytes:
    """Return the JSON object that says what one request used and saved.

    Args:
        predicted_tokens: cached ones, before the request was sent; 0 if unknown.
        dropped_tokens: of documents that the payload has already, as the index counts them.
        saved_tokens: that were not computed because of RAGBoost, estimated.
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
    if cache_break is not None:
        fields["cache_break"] = cache_break
    return msgspec.json.encode(fields)
