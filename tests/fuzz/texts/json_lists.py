"""Compare a list of documents that is a JSON text as data: it may be encoded in another way."""

import json
from collections.abc import Callable, Sequence
from typing import Any


def is_same_data(written: str, received: str, *, is_reference: Callable[[str, str], bool]) -> bool:
    """Say if a JSON text holds the client's elements in some order, texts whole or replaced.

    Args:
        written: by the client.
        received: by the backend.
        is_reference: says if a string may stand for a document's text.
    """
    try:
        before, now = json.loads(written), json.loads(received)
    except ValueError:
        return False
    if isinstance(before, dict) and isinstance(now, dict):
        before, now = before.get("results"), now.get("results")
    if not isinstance(before, list) or not isinstance(now, list) or len(before) != len(now):
        return False
    return _matches(before, now, is_reference)


def _matches(
    before: Sequence[Any], now: Sequence[Any], is_reference: Callable[[str, str], bool]
) -> bool:
    """Pair the elements: equal ones first, then those with a reference."""
    left = list(before)
    replaced = []
    for element in now:
        if element in left:
            left.remove(element)
        else:
            replaced.append(element)
    for element in replaced:
        pair = next((old for old in left if _is_replaced(old, element, is_reference)), None)
        if pair is None:
            return False
        left.remove(pair)
    return not left


def _is_replaced(old: Any, new: Any, is_reference: Callable[[str, str], bool]) -> bool:
    if isinstance(old, str) and isinstance(new, str):
        return is_reference(old, new)
    if not isinstance(old, dict) or not isinstance(new, dict) or [*old] != [*new]:
        return False
    return all(
        old[name] == new[name] or (name == "text" and is_reference(old[name], new[name]))
        for name in old
    )
