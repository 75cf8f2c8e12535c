"""Read the cached prompt tokens that a response reports.

Knows the shapes of OpenAI, Anthropic, vLLM, SGLang and their relatives. Does not know streams or
HTTP: the caller parses a response, or one event of a stream, and passes the object.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_MAX_COUNT = 2**53  # what a float holds exactly, as metrics do


class Usage(NamedTuple):
    """Prompt tokens of one response; None if not reported.

    Attributes:
        prompt_tokens: all tokens of the prompt, cached ones too.
        cached_tokens: tokens read from the prefix cache.
        cache_write_tokens: tokens newly written to the cache.
        reused_tokens: other tokens whose KV came from stored chunks and was not computed again.
        long_write_tokens: of the written ones, those kept for an hour (Anthropic).
        prompt_ids: token ids of the prompt, for requests with `return_token_ids` (vLLM, SGLang).
    """

    prompt_tokens: int
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    prompt_ids: tuple[int, ...] | None = None
    reused_tokens: int | None = None
    long_write_tokens: int | None = None


def read_usage(answer: Mapping[str, Any]) -> Usage | None:
    """Find the usage in a response or in one event of a stream; return None if there is none.

    Fields that are missing, null or of the wrong type count as not reported.
    """
    for holder in (answer, answer.get("message"), answer.get("response")):
        if isinstance(holder, dict):
            for name in ("usage", "meta_info"):  # meta_info in SGLang's /generate
                usage = holder.get(name)
                if isinstance(usage, dict):
                    found = _from_usage(usage)
                    ids = _prompt_ids(answer)
                    return found if found is None or ids is None else found._replace(prompt_ids=ids)
    return None


def _prompt_ids(answer: Mapping[str, Any]) -> tuple[int, ...] | None:
    # vLLM: beside the choices of a chat, in the choices of a completion. SGLang: in the choices.
    choices = answer.get("choices")
    first = choices[0] if isinstance(choices, list) and len(choices) == 1 else None
    for holder in (answer, first):
        ids = holder.get("prompt_token_ids") if isinstance(holder, dict) else None
        if isinstance(ids, list) and ids and all(_is_token(number) for number in ids):
            return tuple(ids)
    return None


def merge_usage(reported: Iterable[Usage | None]) -> Usage | None:
    """Merge the usages of a stream's events: the last one with cached tokens, or else the last."""
    merged: Usage | None = None
    for usage in reported:
        if usage is None or (
            merged is not None and merged.cached_tokens is not None and usage.cached_tokens is None
        ):
            continue
        merged = usage
    return merged


def _from_usage(usage: Mapping[str, Any]) -> Usage | None:
    read, written = _count(usage, "cache_read_input_tokens"), _anthropic_written(usage)
    fresh = _count(usage, "input_tokens")
    if fresh is not None and (read is not None or written is not None):
        # Anthropic counts read and written tokens in addition to input_tokens, others within.
        by_ttl = usage.get("cache_creation")
        long = _count(by_ttl, "ephemeral_1h_input_tokens") if isinstance(by_ttl, dict) else None
        total = fresh + (read or 0) + (written or 0)
        return Usage(total, read or 0, written or 0, long_write_tokens=long)
    prompt = _count(usage, "prompt_tokens")
    prompt = fresh if prompt is None else prompt
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    details = details if isinstance(details, dict) else {}
    cached = _first(
        _count(details, "cached_tokens"),
        _count(usage, "cached_tokens"),  # SGLang's meta_info, Moonshot
        _count(usage, "prompt_cache_hit_tokens"),  # DeepSeek
        read,
    )
    if prompt is None:
        return None
    written = _first(
        _count(details, "created_cache_tokens"),  # vLLM
        _count(details, "cache_write_tokens"),
        _count(details, "cache_creation_tokens"),
        written,
    )
    chunks = usage.get("ragboost")
    reused = _count(chunks, "approx_cached_tokens") if isinstance(chunks, dict) else None
    known = None if cached is None else min(cached, prompt)
    return Usage(
        prompt, known, written, reused_tokens=None if reused is None else min(reused, prompt)
    )


def _anthropic_written(usage: Mapping[str, Any]) -> int | None:
    total = _count(usage, "cache_creation_input_tokens")
    by_ttl = usage.get("cache_creation")
    if total is not None or not isinstance(by_ttl, dict):
        return total
    parts = [_count(by_ttl, name) for name in by_ttl]
    return sum(part for part in parts if part is not None)


def _count(holder: Mapping[str, Any], name: str) -> int | None:
    value = holder.get(name)
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else None  # not a bool


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**32


def _first(*values: int | None) -> int | None:
    for value in values:
        if value is not None:
            return value
    return None
