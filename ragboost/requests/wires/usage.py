"""Read the cached prompt tokens that a response reports.

Does not know streams or HTTP: the caller parses a response, or one event of a stream, and passes
the object.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

from ragboost.requests.wires.registry import ADDITIVE_COUNTS, ALL_COUNTS, ANY
from ragboost.requests.wires.wire import Names

_MAX_COUNT = 2**53  # what a float holds exactly, as metrics do
_OURS = "ragboost"
Steps = tuple[tuple[str, str], ...]
"""Name, and name within it, of each path to a count; the second is empty for a path of one name."""

_STREAMED = tuple([f'"{name}"'.encode() for name in ANY.usage])
USAGE_START = re.compile(rb'"(?:%b)"\s*:\s*\{' % "|".join(ANY.usage).encode())
OURS_START = re.compile(rb'"%b"\s*:\s*\{' % _OURS.encode())


class Usage(NamedTuple):
    """Prompt tokens of one response; None if not reported."""

    prompt_tokens: int  # all of the prompt, cached ones too
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reused_tokens: int | None = None  # whose KV came from stored chunks and was not computed again
    recomputed_tokens: int | None = None  # whose KV came from stored chunks and was computed again

    def bought_tokens(self, planned: int) -> int | None:
        """Return how many of the computed tokens were bought: documents that the backend computed
        exactly, so that its prefix cache holds them, though it reuses chunks.

        Args:
            planned: the proxy's decision, in its own count.

        Returns:
            None if the backend did not report chunk reuse.
        """
        if self.reused_tokens is None:
            return None
        stored = (self.cached_tokens or 0) + self.reused_tokens + (self.recomputed_tokens or 0)
        return max(0, min(planned, self.prompt_tokens - stored))


def has_usage(data: bytes) -> bool:
    for name in _STREAMED:  # noqa: SIM110  # for every chunk, and `any` takes three times as long
        if name in data:
            return True
    return False


def read_usage(answer: Mapping[str, Any]) -> Usage | None:
    """Find the usage in a response or in one event of a stream; return None if there is none.

    Fields that are missing, null or of the wrong type count as not reported.
    """
    usage = next(_usages(answer), None)
    return None if usage is None else _added_up(usage) or _counted(usage)


def our_figures(answer: Any) -> dict[str, Any] | None:
    """Return the `ragboost` object within the usage of an event; None if there is none."""
    for usage in _usages(answer) if isinstance(answer, dict) else ():
        if isinstance(figures := usage.get(_OURS), dict):
            return figures
    return None


def is_usage_event(event: Mapping[str, Any]) -> bool:
    """Return True for the event with nothing but usage that ends a stream of completions."""
    return event.get("choices") == []


def is_last_event(event: Any) -> bool:
    if not isinstance(event, dict):
        return False
    return is_usage_event(event) or event.get("type") in ANY.last_events


def merge_usage(usage: Usage | None, later: Usage) -> Usage:
    """Merge the usages of a stream's events: the last one with cached tokens, or else the last."""
    if usage is not None and usage.cached_tokens is not None and later.cached_tokens is None:
        return usage
    return later


def _usages(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for holder in (answer, *[answer.get(name) for name in ANY.usage_holders]):
        if isinstance(holder, dict):
            for name in ANY.usage:
                if isinstance(usage := holder.get(name), dict):
                    yield usage


def _steps(names: Names) -> Steps:
    return tuple([path.partition(".")[::2] for path in names])


def _added_up(usage: Mapping[str, Any]) -> Usage | None:
    for prompt, cached, written in _ADDITIVE:
        fresh = _count(usage, prompt)
        if fresh is None:
            continue
        read, wrote = _count(usage, cached), _count(usage, written)
        if read is not None or wrote is not None:
            read, wrote = read or 0, wrote or 0
            return Usage(fresh + read + wrote, read, wrote)
    return None


def _counted(usage: Mapping[str, Any]) -> Usage | None:
    prompt = _count(usage, _PROMPT)
    if prompt is None:
        return None
    cached, left = _count(usage, _CACHED), prompt
    if cached is not None:
        cached = min(cached, left)
        left -= cached
    reused, recomputed = _count(usage, _REUSED) if _OURS in usage else None, None
    if reused is not None:
        reused = min(reused, left)
        recomputed = min(_count(usage, _RECOMPUTED) or 0, left - reused)
    return Usage(
        prompt, cached, _count(usage, _WRITTEN), reused_tokens=reused, recomputed_tokens=recomputed
    )


def _count(usage: Mapping[str, Any], steps: Steps) -> int | None:
    """Return the first count at one of these paths."""
    for name, inner in steps:
        value = usage.get(name)
        if value is None:
            continue
        if inner:
            if not isinstance(value, dict):
                continue
            if inner == "*":
                return sum([part for part in value.values() if _is_count(part)])
            value = value.get(inner)
        if _is_count(value):
            return value
    return None


_ADDITIVE = [
    tuple(map(_steps, (counts.prompt, counts.cached, counts.written))) for counts in ADDITIVE_COUNTS
]
_PROMPT, _CACHED, _WRITTEN = map(_steps, (ALL_COUNTS.prompt, ALL_COUNTS.cached, ALL_COUNTS.written))
_REUSED, _RECOMPUTED = map(_steps, (ALL_COUNTS.reused, ALL_COUNTS.recomputed))


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MAX_COUNT  # not a bool
