"""Split the usage of a response by the origin of its prompt's tokens.

Knows completions as JSON and as server-sent events. Does not know sockets.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec


class TokenOrigins(NamedTuple):
    """Origins of a prompt's tokens, which add up to its length.

    Attributes:
        exact: KV from the engine's prefix cache, or equal to it.
        reused: approximate KV of stored chunks.
        recomputed: tokens of stored chunks that were computed again.
        computed: computed like any other token.
        reason: why no chunk was reused; None: some were.
    """

    exact: int
    reused: int
    recomputed: int
    computed: int
    reason: str | None = None

    @classmethod
    def read(cls, told: Any) -> "TokenOrigins | None":
        """Return the origins that the engine reports, or None if they are of another shape."""
        try:
            origins = msgspec.convert(told, _Report)
        except msgspec.ValidationError:
            return None
        return cls(
            origins.exact, origins.reused, origins.recomputed, origins.computed, origins.reason
        )


class _Report(msgspec.Struct):
    exact: int
    reused: int
    recomputed: int
    computed: int
    reason: str | None = None


def split_usage(usage: Mapping[str, Any], origins: TokenOrigins) -> dict[str, Any]:
    """Return a usage whose cached tokens are the exact ones, with the others beside them."""
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    return {
        **usage,
        "prompt_tokens_details": {**details, "cached_tokens": origins.exact},
        "ragboost": {
            "exact_cached_tokens": origins.exact,
            "approx_cached_tokens": origins.reused,
            "recomputed_tokens": origins.recomputed,
            "computed_tokens": origins.computed,
        },
    }


def split_body(body: bytes) -> tuple[bytes, TokenOrigins | None]:
    """Return a JSON response with its usage split, and the origins that the engine tells in it.

    The engine's report, in `kv_transfer_params`, is taken out of the response.
    """
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body, None
    params = answer.get("kv_transfer_params") if isinstance(answer, dict) else None
    if not isinstance(params, dict) or "ragboost" not in params:
        return body, None
    origins = TokenOrigins.read(params["ragboost"])
    rest = {name: value for name, value in params.items() if name != "ragboost"}
    answer["kv_transfer_params"] = rest or None
    usage = answer.get("usage")
    if origins is not None and isinstance(usage, dict):
        answer["usage"] = split_usage(usage, origins)
    return msgspec.json.encode(answer), origins


def split_answer(body: bytes, origins: TokenOrigins) -> bytes:
    """Return a JSON response with its usage split, if it has one."""
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return body
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return body
    answer["usage"] = split_usage(usage, origins)
    return msgspec.json.encode(answer)


def split_event(event: bytes, origins: TokenOrigins) -> bytes:
    """Return a server-sent event with its usage split, if it has one."""
    head, separator, rest = event.partition(b"data:")
    if not separator or head.strip():
        return event
    data = rest.strip()
    try:
        told = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return event
    usage = told.get("usage") if isinstance(told, dict) else None
    if not isinstance(usage, dict):
        return event
    told["usage"] = split_usage(usage, origins)
    return b"data: " + msgspec.json.encode(told) + event[len(event.rstrip()) :]
