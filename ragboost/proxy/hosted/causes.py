"""Name the cause for which the prompt of a request is not the continuation of the one before.

Reads a few KB around the first difference, and shorter texts as JSON.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from ragboost.proxy.hosted.prompt import PromptPart, PromptParts, common_length
from ragboost.requests.wires.body import tool_name
from ragboost.requests.wires.normal_form import joined
from ragboost.requests.wires.registry import ANY
from ragboost.requests.wires.volatile_lines import VOLATILE_LINES, volatile_line
from ragboost.util.jsonl import json_value

_AROUND = 120  # characters around the first difference that are searched for dates and ids
_FOLLOWING = 3  # characters behind a value that changes, which are equal
_COMPARED = 4096  # characters behind the difference that are searched for white space
_MAX_JSON = 64 * 1024  # characters of a text that is parsed as JSON
_MAX_TOOL_BYTES = 256 * 1024  # of all tools, beyond which these are not looked at one by one
_MAX_CLEARED = 200  # characters that stand for the result of a tool
_REASONING = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")
_REASONING_TYPES = ("reasoning", "thinking", "redacted_thinking")
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
    TOOL_LISTS = "order inside a tool"
    TOOLS = "changed tools"
    KEY_ORDER = "JSON keys in another order"
    WHITESPACE = "whitespace"
    TRUNCATED = "truncated history"
    MESSAGE_ORDER = "messages in another order"
    SYSTEM = "changed system prompt"
    MESSAGE = "changed message"
    REASONING = "dropped reasoning"
    CLEARED = "cleared tool result"
    HOISTED = "later system message at the front"
    VOLATILE = "volatile line"
    MODEL = "another model"
    OPTIONS = "changed options"


MENDS = {
    Cause.TIME: "move it behind the documents, or into the last message",
    Cause.RANDOM_ID: "remove it, or move it into the last message",
    Cause.TOOL_ORDER: 'sort the tools, or set stable = "safe"',
    Cause.TOOL_LISTS: (
        'sort "required", as stable = "safe" does: it is a set; keep one order of "enum" and other '
        "lists: models prefer what stands first"
    ),
    Cause.TOOLS: "send the same tools with every request",
    Cause.KEY_ORDER: 'encode JSON with sorted keys; in tools, stable = "safe" does',
    Cause.WHITESPACE: "render the prompt in one place",
    Cause.TRUNCATED: "truncate rarely and by much, not a little with every request",
    Cause.MESSAGE_ORDER: "send earlier messages in the order in which they were sent before",
    Cause.SYSTEM: "keep the system prompt, and put what changes into the last message",
    Cause.MESSAGE: "send earlier messages as they were sent before",
    Cause.REASONING: "send each answer back with its reasoning, as it came",
    Cause.CLEARED: "clear many results at once, and rarely",
    Cause.HOISTED: "write it into the last user message: many templates have one system message",
    Cause.VOLATILE: "; ".join([f"{line.name}: set {line.switch}" for line in VOLATILE_LINES])
    + ', or stable = "safe"',
    Cause.MODEL: "stay with one model in a conversation: each has a cache of its own",
    Cause.OPTIONS: "keep the options of a conversation",
}
"""What helps against each cause, in one line."""


def cause_of(before: PromptParts, after: PromptParts, at: int, common: int) -> Cause:
    """Return the cause for which two prompts differ in a part, behind its common characters."""
    old, new = before.parts[at], after.parts[at]
    if "tools" in (old.place, new.place):
        return _tools_cause(before, after, old, new, common)
    if any(prompt.num_first <= at < prompt.num_above for prompt in (before, after)):
        return Cause.HOISTED
    if old.is_message and (cause := _message_cause(before, after, at)) is not None:
        return cause
    if old.place == "system" and old.place != new.place:
        return Cause.SYSTEM
    if (cause := _text_cause(old, new, common)) is not None:
        return cause
    return Cause.SYSTEM if old.place == "system" else Cause.MESSAGE


def _message_cause(before: PromptParts, after: PromptParts, at: int) -> Cause | None:
    """Return the cause of a message that lacks what it had, or stands elsewhere."""
    old, new = before.parts[at].value, after.parts[at].value
    following = before.parts[at + 1 : at + 2]
    if _is_reasoning(old) and [part.text for part in following] == [after.parts[at].text]:
        return Cause.REASONING
    if _lacks_reasoning(old, new):
        return Cause.REASONING
    if _is_cleared(old, new):
        return Cause.CLEARED
    return _moved_cause(before, after, at)


def _lacks_reasoning(old: Any, new: Any) -> bool:
    """Return True if a message is what it was but for its reasoning, all or some of it."""
    was, now = _without_reasoning(old), _without_reasoning(new)
    if was == old or was != now:
        return False
    return now == new or (
        old.get("content") == new.get("content")
        and all(old.get(name) == new[name] for name in _REASONING if name in new)
    )


def _without_reasoning(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {name: value for name, value in message.items() if name not in _REASONING}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = joined([block for block in content if not _is_reasoning(block)])
    return kept


def _is_reasoning(block: Any) -> bool:
    return isinstance(block, dict) and block.get("type") in _REASONING_TYPES


def _is_cleared(old: Any, new: Any) -> bool:
    """Return True if a few words stand for what the results of tools were."""
    a, b = _result_texts(old), _result_texts(new)
    changed = [(x, y) for x, y in zip(a, b, strict=False) if x != y]
    return len(a) == len(b) and any(len(y) <= _MAX_CLEARED < len(x) for x, y in changed[:1])


def _result_texts(message: Any) -> list[str]:
    """Return the results of tools in a message."""
    if not isinstance(message, dict):
        return []
    if message.get("role") in ANY.tool_roles:
        return [str(message.get("content"))]
    kind = message.get("type")
    if isinstance(kind, str) and kind in ANY.result_items:
        return [str(message.get(ANY.result_items[kind]))]
    content = message.get("content")
    blocks = [b for b in content if isinstance(b, dict)] if isinstance(content, list) else []
    return [str(b.get("content")) for b in blocks if b.get("type") in tuple(ANY.result_blocks)]


def _tools_cause(
    before: PromptParts, after: PromptParts, old: PromptPart, new: PromptPart, common: int
) -> Cause:
    olds, news = (
        [part for part in prompt.parts if part.place == "tools"] for prompt in (before, after)
    )
    if sum(part.size for part in (*olds, *news)) > _MAX_TOOL_BYTES:
        return Cause.TOOLS
    if _same_items([part.text for part in olds], [part.text for part in news]):
        return Cause.TOOL_ORDER
    is_same_place = old.place == new.place
    if is_same_place and _are_equal(old.value, new.value):
        return Cause.KEY_ORDER
    if _same_items([_sorted(part.value) for part in olds], [_sorted(part.value) for part in news]):
        return Cause.TOOL_ORDER
    if is_same_place and _unordered(old.value) == _unordered(new.value):
        return Cause.TOOL_LISTS
    names = [[tool_name(part.value) for part in parts] for parts in (olds, news)]
    if is_same_place and names[0] == names[1]:
        return _text_cause(old, new, common) or Cause.TOOLS
    return Cause.TOOLS


def _moved_cause(before: PromptParts, after: PromptParts, at: int) -> Cause | None:
    """Return the cause of messages that stand before where they stood; None if there are none."""
    olds, news = ([bytes(part.raw) for part in each.parts[at:]] for each in (before, after))
    later = {raw: index for index, raw in enumerate(olds) if index}
    if not any(later.get(raw, 0) > index for index, raw in enumerate(news[:3])):
        return None
    return Cause.MESSAGE_ORDER if Counter(olds) <= Counter(news) else Cause.TRUNCATED


def _text_cause(old: PromptPart, new: PromptPart, common: int) -> Cause | None:
    if _are_equal(old.value, new.value):
        return Cause.KEY_ORDER
    a, b = _strings(old), _strings(new)
    for before, after in zip(a, b, strict=False):
        if before != after:
            return _string_cause(before, after)
    return value_cause(old.text, new.text, common)


def _string_cause(old: str, new: str) -> Cause | None:
    """Return the cause of a difference between two texts; None if it has no pattern."""
    common = common_length(old, new)
    first = next((text for text in (old, new) if volatile_line(text)), "")
    if first and common < len(first.partition("\n")[0]):
        return Cause.VOLATILE
    if (cause := value_cause(old, new, common)) is not None:
        return cause
    if max(len(old), len(new)) > _MAX_JSON:
        return None
    a_json, b_json = _json(old), _json(new)
    return Cause.KEY_ORDER if a_json is not None and _are_equal(a_json, b_json) else None


def value_cause(old: str, new: str, common: int) -> Cause | None:
    """Return the cause of a value or white space that changes at a place of two texts."""
    if _is_spaced(old, new, common):
        return Cause.WHITESPACE
    patterns = ((_UUID, Cause.RANDOM_ID), (_TIME, Cause.TIME), (_RANDOM, Cause.RANDOM_ID))
    for pattern, cause in patterns:
        a, b = _matched(pattern, old, common), _matched(pattern, new, common)
        if a is not None and b is not None and a == b:
            return cause
    return None


def _is_spaced(old: str, new: str, common: int) -> bool:
    """Return True if two texts differ by white space, as far as they are looked at."""
    start, end = max(0, common - _AROUND), common + _COMPARED
    a, b = old[start:end].split(), new[start:end].split()
    if max(len(old), len(new)) > end:  # the last words may be cut
        num = min(len(a), len(b)) - 1
        a, b = a[:num], b[:num]
    return a == b != []


def _matched(pattern: re.Pattern[str], text: str, at: int) -> str | None:
    """Return what follows the match at a place of a text; None if there is no match."""
    start = max(0, at - _AROUND)
    for match in pattern.finditer(text[start : at + _AROUND]):
        if match.start() <= at - start <= match.end():
            return text[start + match.end() :][:_FOLLOWING]
    return None


def _strings(part: PromptPart) -> list[str]:
    found: list[str] = []

    def visit(value: Any) -> None:
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                visit(inner)

    visit(part.value)
    return found


def _same_items(old: Sequence[str], new: Sequence[str]) -> bool:
    return old != new and Counter(old) == Counter(new)


def _are_equal(old: Any, new: Any) -> bool:
    """Return True for equal JSON values; 1, 1.0 and true are three."""
    return bool(old == new) and _sorted(old) == _sorted(new)


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unordered(value: Any) -> str:
    """Write a value so that neither keys nor lists have an order."""
    if isinstance(value, dict):
        return _sorted({name: _unordered(inner) for name, inner in value.items()})
    return _sorted(sorted(map(_unordered, value)) if isinstance(value, list) else value)


def _json(text: str) -> Any:
    return json_value(text) if text[:1] in ("{", "[") else None
