"""Put what has no order of its own into one order, so that equal requests have equal prefixes.

Tools by name, the keys of their JSON and of the inputs of earlier tool calls, and the lists that
the user names. Never touches a text, the order of messages, or what stands at a cache breakpoint.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ragboost.config import StableSettings
from ragboost.rewriting.json_body import JsonBody, MalformedBodyError
from ragboost.wires.body import has_cache_mark
from ragboost.wires.registry import ANY, CONTENTS

_Change = Callable[[Any], Any]


class StableOrder:
    """Rewrites request bodies; equal up to order before, they are equal afterwards.

    Args:
        settings: names the lists.
    """

    def __init__(self, settings: StableSettings) -> None:
        self._paths = [path.split(".") for path in settings.lists]

    def apply(self, raw: bytes) -> bytes:
        """Return the body in the stable order; the same bytes if it is in it, or no JSON object."""
        try:
            body = JsonBody(raw)
        except MalformedBodyError:
            return raw  # the backend reports it
        fields = dict(body.fields)

        def rank(value: Any) -> bytes:
            return body.encode_bytes(sort_keys(value))

        for name in ANY.tools:
            if isinstance(tools := fields.get(name), list):
                fields[name] = _sort_tools(tools, rank)
        for name, content in CONTENTS.items():
            if isinstance(messages := fields.get(name), list):
                fields[name] = _changed_list(messages, partial(_sort_inputs, field=content))
        for path in self._paths:
            name, rest = path[0], path[1:]
            fields = _changed_field(fields, name, rest, rank)
        return body.encode(fields)


def sort_keys(value: Any) -> Any:
    """Return a JSON value with sorted keys on all levels; the same object if they are sorted."""
    if isinstance(value, list):
        return _changed_list(value, sort_keys)
    if not isinstance(value, dict):
        return value
    new = {name: sort_keys(value[name]) for name in sorted(value)}
    is_same = list(new) == list(value) and all(new[name] is value[name] for name in value)
    return value if is_same else new


def _sort_tools(tools: list[Any], rank: _Change) -> list[Any]:
    def key(tool: Any) -> tuple[str, bytes]:
        inner = tool.get("function", tool) if isinstance(tool, dict) else None
        name = inner.get("name") if isinstance(inner, dict) else None
        return str(name or ""), rank(tool)

    return _sort_list(_changed_list(tools, sort_keys), key)


def _sort_inputs(message: Any, *, field: str) -> Any:
    content = message.get(field) if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    new = _changed_list(content, _sort_input)
    return message if new is content else {**message, field: new}


def _sort_input(block: Any) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    name = ANY.input_blocks.get(kind) if isinstance(kind, str) else None
    if name is None:
        return block
    value = block.get(name)
    new = sort_keys(value)
    return block if new is value else {**block, name: new}


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


def _changed_field(holder: Any, step: str, rest: Sequence[str], rank: _Change) -> Any:
    name, is_each = step.removesuffix("[]"), step.endswith("[]")
    value = holder.get(name) if isinstance(holder, dict) else None

    def follow(inner: Any) -> Any:
        return _changed_field(inner, rest[0], rest[1:], rank) if rest else inner

    if is_each:
        new = _changed_list(value, follow) if isinstance(value, list) else value
    elif rest:
        new = follow(value)
    else:
        new = _sort_list(value, rank) if isinstance(value, list) else value
    return holder if new is value else {**holder, name: new}
