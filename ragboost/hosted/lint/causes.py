"""Name the cause for which the prompt of a request is not the continuation of the one before.

Looks at the first difference only: an API's cache ends there.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from ragboost.hosted.lint.prompt import LoggedPart, LoggedPrompt, common_length

_AROUND = 120  # characters around the first difference that are searched for dates and ids
_SHOWN = 60
_MAX_JSON = 1_000_000
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_TIME = re.compile(
    r"\d{4}-\d\d?-\d\d?(?:[T ]\d\d?:\d\d(?::\d\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"
    r"|\d{1,2}[./]\d{1,2}[./]\d{2,4}"
    rf"|(?:\d{{1,2}}(?:st|nd|rd|th)? )?{_MONTH}\.?(?: \d{{1,2}}(?:st|nd|rd|th)?)?,? \d{{4}}"
    rf"|\b{_DAY}day\b|\b{_DAY},"
    r"|\b\d{1,2}:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[AaPp][Mm])?"
    r"|\b1\d{9}(?:\.\d+|\d{3})?\b"
)
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_RANDOM = re.compile(
    r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b"
    r"|\b[a-z]{2,12}[_-](?=[A-Za-z0-9_-]*\d)[A-Za-z0-9_-]{6,}\b"
    r"|\b(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{16,}\b"
)


class Cause(StrEnum):
    """The kind of change, as reports name it."""

    TIME = "date or time"
    RANDOM_ID = "random id"
    TOOL_ORDER = "tools in another order"
    TOOLS = "changed tools"
    KEY_ORDER = "JSON keys in another order"
    ITEM_ORDER = "items in another order"
    ITEMS = "items added or removed"
    WHITESPACE = "whitespace"
    TRUNCATED = "truncated history"
    SYSTEM = "changed system prompt"
    MESSAGE = "changed message"
    MODEL = "another model"


class PrefixBreak(NamedTuple):
    """The first difference between two requests of a conversation."""

    cause: Cause
    path: str  # of the part in which it is, in the later request
    place: str  # the same without numbers
    offset: int  # bytes of that part before the difference
    equal_bytes: int  # of the whole prompt before it
    lost_bytes: int  # of the earlier prompt behind it, which would have been cached
    before: str  # the earlier text from shortly before the difference
    after: str  # the later text from there


def compare(before: LoggedPrompt, after: LoggedPrompt) -> PrefixBreak | None:
    """Return the first difference; None if the later prompt continues the earlier one."""
    if before.model != after.model:
        return PrefixBreak(
            Cause.MODEL, "model", "model", 0, 0, before.num_bytes, before.model, after.model
        )
    equal_bytes = 0
    for at, old in enumerate(before.parts):
        new = after.parts[at] if at < len(after.parts) else None
        if new is not None and old.digest == new.digest:
            equal_bytes += old.size
            continue
        return _difference(before, after, at, new, equal_bytes)
    return None


def _difference(
    before: LoggedPrompt, after: LoggedPrompt, at: int, new: LoggedPart | None, equal_bytes: int
) -> PrefixBreak | None:
    old = before.parts[at]
    if new is None:
        if at == len(before.parts) - 1:
            return None  # the last message was taken back: all that was sent is cached
        last = after.parts[-1].path if after.parts else "messages"
        lost = before.num_bytes - equal_bytes
        return PrefixBreak(
            Cause.TRUNCATED, last, old.place, 0, equal_bytes, lost, old.text[:_SHOWN], ""
        )
    common = common_length(old.text, new.text)
    offset = len(old.text[:common].encode("utf-8", "surrogatepass"))
    start = max(0, common - _SHOWN // 3)
    return PrefixBreak(
        _cause(before, after, at, common),
        new.path,
        new.place,
        offset,
        equal_bytes + offset,
        before.num_bytes - equal_bytes - offset,
        old.text[start : start + _SHOWN],
        new.text[start : start + _SHOWN],
    )


def _cause(before: LoggedPrompt, after: LoggedPrompt, at: int, common: int) -> Cause:
    old, new = before.parts[at], after.parts[at]
    if "tools" in (old.place, new.place):
        return _tools_cause(before, after, old, new, common)
    if old.is_message and _is_truncated(before, after, at):
        return Cause.TRUNCATED
    if old.place == "system" and old.place != new.place:
        return Cause.SYSTEM
    if (cause := _text_cause(old, new, common)) is not None:
        return cause
    return Cause.SYSTEM if old.place == "system" else Cause.MESSAGE


def _tools_cause(
    before: LoggedPrompt, after: LoggedPrompt, old: LoggedPart, new: LoggedPart, common: int
) -> Cause:
    olds, news = (
        [part for part in prompt.parts if part.place == "tools"] for prompt in (before, after)
    )
    if _same_items([part.text for part in olds], [part.text for part in news]):
        return Cause.TOOL_ORDER
    if _same_items([_sorted(part.value) for part in olds], [_sorted(part.value) for part in news]):
        same_place = old.place == new.place and _sorted(old.value) == _sorted(new.value)
        return Cause.KEY_ORDER if same_place else Cause.TOOL_ORDER
    names = [[_tool_name(part.value) for part in parts] for parts in (olds, news)]
    if old.place == new.place and names[0] == names[1]:
        return _text_cause(old, new, common) or Cause.TOOLS
    return Cause.TOOLS


def _tool_name(value: Any) -> str:
    inner = value.get("function", value) if isinstance(value, dict) else None
    return str(inner.get("name")) if isinstance(inner, dict) else ""


def _is_truncated(before: LoggedPrompt, after: LoggedPrompt, at: int) -> bool:
    later = {part.digest: index for index, part in enumerate(before.parts) if index > at}
    following = list(enumerate(after.parts))[at : at + 3]
    return any(later.get(part.digest, 0) > index for index, part in following)


def _text_cause(old: LoggedPart, new: LoggedPart, common: int) -> Cause | None:
    if _sorted(old.value) == _sorted(new.value):
        return Cause.KEY_ORDER
    a, b = _strings(old), _strings(new)
    for before, after in zip(a, b, strict=False):
        if before != after:
            return _string_cause(before, after)
    if len(a) != len(b):
        return Cause.ITEMS
    return _value_cause(old.text, new.text, common)


def _string_cause(old: str, new: str) -> Cause | None:
    """Return the cause of a difference between two texts; None if it has no pattern."""
    if old.split() == new.split():
        return Cause.WHITESPACE
    if (cause := _value_cause(old, new, common_length(old, new))) is not None:
        return cause
    a_json, b_json = _json(old), _json(new)
    if a_json is not None and _sorted(a_json) == _sorted(b_json):
        return Cause.KEY_ORDER
    a, b = _items(old), _items(new)
    if len(a) > 1 and _same_items(a, b):
        return Cause.ITEM_ORDER
    common = Counter(a) & Counter(b)
    if len(a) > 2 and len(a) != len(b) and common.total() >= min(len(a), len(b)) - 1:
        return Cause.ITEMS
    return None


def _value_cause(old: str, new: str, common: int) -> Cause | None:
    if (old.split() == new.split()) and old != new:
        return Cause.WHITESPACE
    patterns = ((_UUID, Cause.RANDOM_ID), (_TIME, Cause.TIME), (_RANDOM, Cause.RANDOM_ID))
    for pattern, cause in patterns:
        if _covers(pattern, old, common) and _covers(pattern, new, common):
            return cause
    return None


def _covers(pattern: re.Pattern[str], text: str, at: int) -> bool:
    start = max(0, at - _AROUND)
    window = text[start : at + _AROUND]
    return any(match.start() <= at - start <= match.end() for match in pattern.finditer(window))


def _strings(part: LoggedPart) -> list[str]:
    found: list[str] = []

    def visit(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner)

    visit(part.value)
    return found


def _items(text: str) -> list[str]:
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    return paragraphs if len(paragraphs) > 2 else lines


def _same_items(old: Sequence[str], new: Sequence[str]) -> bool:
    return old != new and Counter(old) == Counter(new)


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _json(text: str) -> Any:
    if text[:1] not in "{[" or len(text) > _MAX_JSON:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
