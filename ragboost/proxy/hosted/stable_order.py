"""Put what has no order of its own into one order, so that equal requests have equal prefixes.

Tools by name, the keys of their JSON, and the names of required parameters. Lines that an agent
writes for another provider are taken out of the instructions. Touches no other text, no other
message, and nothing at a cache breakpoint.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ragboost.config import Settings
from ragboost.requests.json_body import JsonBody, MalformedBodyError
from ragboost.requests.wires.body import tool_name
from ragboost.requests.wires.cache_marks import has_cache_mark
from ragboost.requests.wires.registry import ANY
from ragboost.requests.wires.volatile_lines import VolatileLine, foreign_lines, without_volatile

_Change = Callable[[Any], Any]
_VALUES = {"const", "default", "enum", "examples"}  # of a parameter; the rest is its schema


class StableOrder:
    """Rewrites request bodies; equal up to order before, they are equal afterwards."""

    def __init__(self, *, lines: Sequence[VolatileLine] = ()) -> None:
        self._lines = lines

    @classmethod
    def of(cls, settings: Settings) -> "StableOrder | None":
        """Return what the settings ask for; None for nothing."""
        if settings.stable != "safe":
            return None
        urls = [each.url for each in settings.backends or (settings.backend,)]
        is_known = settings.backend.file is None  # the addresses in it may become any
        lines = foreign_lines(urls) if is_known else ()
        return cls(lines=lines)

    def apply(self, raw: bytes) -> bytes:
        """Return the body in the stable order; the same bytes if it is in it, or no JSON object."""
        try:
            body = JsonBody(raw)
        except MalformedBodyError:
            return raw  # the backend reports it
        fields = without_volatile(dict(body.fields), self._lines)
        for name in ANY.tools:
            if isinstance(tools := fields.get(name), list):
                fields[name] = _sort_list(_changed_list(tools, _sort_tool), _tool_key(body))
        return body.encode(fields)


def _sort_json(value: Any, *, is_schema: bool = False) -> Any:
    """Return a JSON value with sorted keys on all levels; the same object if they are sorted. The
    required parameters of a tool (`is_schema`) are a set, and are sorted, too."""
    if isinstance(value, list):
        return _changed_list(value, partial(_sort_json, is_schema=is_schema))
    if not isinstance(value, dict):
        return value
    new = {
        name: _sort_json(value[name], is_schema=is_schema and name not in _VALUES)
        for name in sorted(value)
    }
    names = new.get("required") if is_schema and isinstance(new.get("properties"), dict) else None
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        new["required"] = _sort_list(names, str)
    is_same = list(new) == list(value) and all(new[name] is value[name] for name in value)
    return value if is_same else new


_sort_tool = partial(_sort_json, is_schema=True)


def _tool_key(body: JsonBody) -> _Change:
    def key(tool: Any) -> tuple[str, bytes]:
        return tool_name(tool), body.encode_bytes(tool)

    return key


def _sort_list(values: list[Any], key: Callable[[Any], Any]) -> list[Any]:
    """Sort a list, unless the caller set a breakpoint in it; the same object if it is sorted."""
    if any(has_cache_mark(value) for value in values):
        return values
    new = sorted(values, key=key)
    is_same = all(a is b for a, b in zip(new, values, strict=True))
    return values if is_same else new


def _changed_list(values: list[Any], change: _Change) -> list[Any]:
    new = [change(value) for value in values]
    is_same = all(a is b for a, b in zip(new, values, strict=True))
    return values if is_same else new
