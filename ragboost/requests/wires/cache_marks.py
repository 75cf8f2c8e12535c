"""Cache breakpoints: fields with which clients of hosted APIs end a cached prefix."""

from collections.abc import Mapping
from typing import Any

from ragboost.requests.wires.body import levels_of

CACHE_MARKS = ("cache_control", "prompt_cache_breakpoint")
_MARKS = frozenset(CACHE_MARKS)
_ENCODED_MARKS = tuple(f'"{mark}"'.encode() for mark in CACHE_MARKS)


def marks_of(value: Any) -> Mapping[str, Any]:
    """Return the breakpoints of a block or message."""
    if not isinstance(value, dict) or _MARKS.isdisjoint(value):
        return {}
    return {mark: value[mark] for mark in CACHE_MARKS if value.get(mark) is not None}


def has_cache_mark(value: Any) -> bool:
    """Return True if the caller set a cache breakpoint at this block or message."""
    return bool(marks_of(value))


def holds_cache_mark(value: Any) -> bool:
    """Return True if the caller set a cache breakpoint anywhere in a value."""
    return any(
        type(holder) is dict and not _MARKS.isdisjoint(holder)
        for level in levels_of(value)
        for holder in level
    )


def may_have_cache_mark(data: bytes) -> bool:
    """Return True if encoded JSON may hold a cache breakpoint."""
    return any(mark in data for mark in _ENCODED_MARKS)


def without_marks(value: Any) -> Any:
    if isinstance(value, list):
        return [without_marks(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {n: without_marks(inner) for n, inner in value.items() if n not in _MARKS}
