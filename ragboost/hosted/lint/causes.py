"""Name the cause for which the prompt of a request is not the continuation of the one before.

Looks at the first difference only: an API's cache ends there. Of a long text it reads a few KB
around the difference.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from ragboost.hosted.lint.prompt import PromptPart, PromptParts, common_length, text_bytes
from ragboost.jsonl import json_value
from ragboost.wires.body import has_cache_mark, tool_name
from ragboost.wires.normal_form import joined
from ragboost.wires.providers import CACHE_MARKS, PROMPT_CACHES
from ragboost.wires.registry import ANY
from ragboost.wires.volatile_lines import VOLATILE_LINES, volatile_line

_AROUND = 120  # characters around the first difference that are searched for dates and ids
_FOLLOWING = 3  # characters behind a value that changes, which are equal
_SHOWN = 60
_COMPARED = 4096  # characters behind the difference that are searched for white space
_MAX_ITEMS = 64 * 1024  # characters of a text whose items are counted, or that is parsed as JSON
_MAX_BYTES = 256 * 1024  # of parts that differ, decoded in one comparison
_MAX_CLEARED = 200  # characters that stand for the result of a tool
_REASONING_TYPES = frozenset({"reasoning", "thinking", "redacted_thinking"})
MARKS = tuple(f'"{mark}"'.encode() for mark in CACHE_MARKS)
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
    ITEM_ORDER = "items in another order"
    ITEMS = "items added or removed"
    WHITESPACE = "whitespace"
    TRUNCATED = "truncated history"
    MESSAGE_ORDER = "messages in another order"
    SYSTEM = "changed system prompt"
    MESSAGE = "changed message"
    IMAGE = "changed image"
    REASONING = "dropped reasoning"
    CLEARED = "cleared tool result"
    HOISTED = "later system message at the front"
    VOLATILE = "volatile line"
    MODEL = "another model"
    OPTIONS = "changed options"
    BREAKPOINT = "missing breakpoint"
    EXPIRED = "too late"


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
    Cause.ITEM_ORDER: "keep the items in one order, or give them as documents to the proxy",
    Cause.ITEMS: "append to the end only, or move the items into the last message",
    Cause.WHITESPACE: "render the prompt in one place",
    Cause.TRUNCATED: "truncate rarely and by much, not a little with every request",
    Cause.MESSAGE_ORDER: "send earlier messages in the order in which they were sent before",
    Cause.SYSTEM: "keep the system prompt, and put what changes into the last message",
    Cause.MESSAGE: "send earlier messages as they were sent before",
    Cause.IMAGE: "send earlier images as they were sent before, with the same detail",
    Cause.REASONING: "send each answer back with its reasoning, as it came",
    Cause.CLEARED: "clear many results at once, and rarely",
    Cause.HOISTED: "write it into the last user message: many templates have one system message",
    Cause.VOLATILE: "; ".join([f"{line.name}: set {line.switch}" for line in VOLATILE_LINES])
    + ', or stable = "safe"',
    Cause.MODEL: "stay with one model in a conversation: each has a cache of its own",
    Cause.OPTIONS: "keep the options of a conversation",
    Cause.BREAKPOINT: "keep a breakpoint within 20 blocks behind the last one",
    Cause.EXPIRED: "ask sooner, or set breakpoints with a longer ttl",
}
"""What helps against each cause, in one line."""


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
    # An answer of the earlier conversation is in the later request; else its sender may be guessing
    # what somebody else has sent.
    is_proven: bool = True


def compare(before: PromptParts, after: PromptParts) -> PrefixBreak | None:
    """Return the first difference; None if the later prompt continues the earlier one, or is a
    beginning of it, or if so much is spelled in two ways that this is not looked into."""
    if before.model != after.model:
        lost = min(before.num_bytes, after.num_bytes)
        return PrefixBreak(Cause.MODEL, "model", "model", 0, 0, lost, before.model, after.model)
    if (name := _changed(before, after, ANY.head_options)) is not None:
        return _option_break(before, after, name, equal_bytes=0)
    equal_bytes = decoded_bytes = 0
    for at, old in enumerate(before.parts):
        name = _changed(before, after, ANY.message_options) if at == before.num_above else None
        if name is not None:
            return _option_break(before, after, name, equal_bytes=equal_bytes)
        if at >= len(after.parts):
            return None  # all of it was sent
        new = after.parts[at]
        if old.path != new.path or old.raw != new.raw:
            if old.path == new.path and old.size + new.size > _MAX_BYTES:
                return _long_difference(before, after, at, equal_bytes)
            if old.path != new.path or old.text != new.text:
                return _difference(before, after, at, new, equal_bytes)
            decoded_bytes += old.size
            if decoded_bytes > _MAX_BYTES:
                return None
        equal_bytes += old.size
    return _breakpoint_break(before, after)


def _changed(before: PromptParts, after: PromptParts, names: Sequence[str]) -> str | None:
    old, new = before.options, after.options
    return next((name for name in names if old.get(name) != new.get(name)), None)


def _option_break(
    before: PromptParts, after: PromptParts, name: str, *, equal_bytes: int
) -> PrefixBreak:
    lost = min(before.num_bytes, after.num_bytes) - equal_bytes
    old, new = (json.dumps(parts.options.get(name))[:_SHOWN] for parts in (before, after))
    return PrefixBreak(Cause.OPTIONS, name, "options", 0, equal_bytes, max(0, lost), old, new)


def _breakpoint_break(before: PromptParts, after: PromptParts) -> PrefixBreak | None:
    """Return the break of a prompt that is continued, but not read up to where it was written:
    an API looks for what was written at a breakpoint and in a number of blocks before it."""
    if not (before.is_marked or any(has_marks(part.raw) for part in before.parts)):
        return None
    written, read = _marked_blocks(before), _marked_blocks(after)
    if not written:
        return None
    reached = [w for w in written if any(w <= r < w + num for r, num in read.items())]
    found = max(reached, default=-1)
    last = max(written)
    if found == last:
        return None
    ends, num_bytes, hit_bytes = -1, 0, 0
    for old in before.parts:
        ends, num_bytes = ends + len(old.blocks), num_bytes + old.size
        if ends <= found:
            hit_bytes = num_bytes
        if ends >= last:
            lost = num_bytes - hit_bytes
            return PrefixBreak(
                Cause.BREAKPOINT, old.path, old.place, 0, hit_bytes, lost, old.text[-_SHOWN:], ""
            )
    return None


def has_marks(raw: Any) -> bool:
    """Return True if encoded JSON may hold a breakpoint."""
    data = bytes(raw)
    return any(mark in data for mark in MARKS)


def _marked_blocks(prompt: PromptParts) -> dict[int, int]:
    """Return the numbers of the blocks with a breakpoint, counted from the prompt's start, and in
    how many blocks an API looks from there for what was written."""
    blocks = [block for part in prompt.parts for block in part.blocks]
    lookbacks = {cache.mark: cache.lookback for cache in PROMPT_CACHES if cache.mark}
    marked = {
        number: max([num for mark, num in lookbacks.items() if block.get(mark) is not None])
        for number, block in enumerate(blocks)
        if has_cache_mark(block)
    }
    if prompt.is_marked and blocks:
        marked[len(blocks) - 1] = min(lookbacks.values())
    return marked


def expired_break(before: PromptParts, *, seconds: float) -> PrefixBreak | None:
    """Return the break of a prompt that is continued after its breakpoints' lifetime."""
    lifetimes = [_lifetime_s(block) for part in before.parts for block in part.blocks]
    longest = max(lifetimes, default=0.0)
    if not 0 < longest < seconds or not before.parts:
        return None
    first, lost = before.parts[0], before.num_bytes
    waited, kept = f"{seconds:.0f} s", f"kept for {longest:.0f} s"
    return PrefixBreak(Cause.EXPIRED, first.path, first.place, 0, 0, lost, kept, waited)


def _lifetime_s(block: Any) -> float:
    """Return for how many seconds an API keeps what is before a block; 0 without a breakpoint."""
    for cache in PROMPT_CACHES:
        mark = block.get(cache.mark) if isinstance(block, dict) and cache.mark else None
        if isinstance(mark, dict):
            named = [ttl for ttl, value in cache.ttls if value.get("ttl") == mark.get("ttl")]
            return named[0] if named else cache.ttls[0][0]
    return 0.0


def _difference(
    before: PromptParts, after: PromptParts, at: int, new: PromptPart, equal_bytes: int
) -> PrefixBreak | None:
    old = before.parts[at]
    common = common_length(old.text, new.text)
    offset = len(old.text[:common].encode("utf-8", "surrogatepass"))
    if at == len(before.parts) - 1 and common == len(old.text) and old.place == "prompt":
        return None  # a prompt that grows
    start = max(0, common - _SHOWN // 3)
    return PrefixBreak(
        _cause(before, after, at, common),
        new.path,
        new.place,
        offset,
        equal_bytes + offset,
        min(before.num_bytes, after.num_bytes) - equal_bytes - offset,
        old.text[start : start + _SHOWN],
        new.text[start : start + _SHOWN],
    )


def _long_difference(
    before: PromptParts, after: PromptParts, at: int, equal_bytes: int
) -> PrefixBreak:
    """Return the break where two parts differ that are too long to decode: their bytes around it
    are taken for the text."""
    part = after.parts[at]
    old, new = bytes(before.parts[at].raw), bytes(part.raw)
    at_byte = common_length(old, new)
    offset = text_bytes(old[:at_byte])
    start, end = max(0, at_byte - _COMPARED), at_byte + _COMPARED
    a, b = (raw[start:end].decode(errors="replace").replace("\\n", "\n") for raw in (old, new))
    common = common_length(a, b)
    shown = slice(max(0, common - _SHOWN // 3), common + _SHOWN)
    other = Cause.MESSAGE if part.is_message else Cause.SYSTEM
    return PrefixBreak(
        _value_cause(a, b, common) or (Cause.TOOLS if part.place == "tools" else other),
        part.path,
        part.place,
        offset,
        equal_bytes + offset,
        max(0, min(before.num_bytes, after.num_bytes) - equal_bytes - offset),
        a[shown][:_SHOWN],
        b[shown][:_SHOWN],
    )


def _cause(before: PromptParts, after: PromptParts, at: int, common: int) -> Cause:
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
    if is_reasoning(old) and [part.text for part in following] == [after.parts[at].text]:
        return Cause.REASONING
    if (was := _without_reasoning(old)) != old and was == _without_reasoning(new) == new:
        return Cause.REASONING
    if _is_cleared(old, new):
        return Cause.CLEARED
    return _moved_cause(before, after, at)


def _without_reasoning(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    kept = {n: v for n, v in message.items() if n not in ("reasoning", "reasoning_content")}
    if isinstance(content := kept.get("content"), list):
        kept["content"] = joined([block for block in content if not is_reasoning(block)])
    return kept


def is_reasoning(block: Any) -> bool:
    """Return True for a content block or an item that is reasoning alone."""
    return isinstance(block, dict) and block.get("type") in _REASONING_TYPES


def _is_cleared(old: Any, new: Any) -> bool:
    """Return True if a few words stand for what the results of tools were."""
    a, b = _result_texts(old), _result_texts(new)
    changed = [(x, y) for x, y in zip(a, b, strict=False) if x != y]
    return len(a) == len(b) > 0 and all(len(y) <= _MAX_CLEARED < len(x) for x, y in changed[:1])


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
    return [str(b.get("content")) for b in blocks if b.get("type") in ANY.result_blocks]


def _tools_cause(
    before: PromptParts, after: PromptParts, old: PromptPart, new: PromptPart, common: int
) -> Cause:
    olds, news = (
        [part for part in prompt.parts if part.place == "tools"] for prompt in (before, after)
    )
    if sum(part.size for part in (*olds, *news)) > _MAX_BYTES:
        return Cause.TOOLS
    if _same_items([part.text for part in olds], [part.text for part in news]):
        return Cause.TOOL_ORDER
    is_same_place = old.place == new.place
    if is_same_place and old.value == new.value:
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
    if old.value == new.value:
        return Cause.KEY_ORDER
    if _is_in_image(old.value, new.value):
        return Cause.IMAGE
    a, b = _strings(old), _strings(new)
    for before, after in zip(a, b, strict=False):
        if before != after:
            return _string_cause(before, after)
    if len(a) != len(b):
        return Cause.ITEMS
    return _value_cause(old.text, new.text, common)


def _string_cause(old: str, new: str) -> Cause | None:
    """Return the cause of a difference between two texts; None if it has no pattern."""
    common = common_length(old, new)
    first = next((text for text in (old, new) if volatile_line(text)), "")
    if first and common < len(first.partition("\n")[0]):
        return Cause.VOLATILE
    if (cause := _value_cause(old, new, common)) is not None:
        return cause
    if max(len(old), len(new)) > _MAX_ITEMS:
        return None
    a_json, b_json = _json(old), _json(new)
    if a_json is not None and a_json == b_json:
        return Cause.KEY_ORDER
    return _items_cause(old, new)


def _items_cause(old: str, new: str) -> Cause | None:
    a, b = _items(old), _items(new)
    first = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
    if first >= 0 and a[first] not in new and b[first] not in old:
        return None  # neither of the first two that differ has moved
    if len(a) > 1 and _same_items(a, b):
        return Cause.ITEM_ORDER
    common = Counter(a) & Counter(b)
    if len(a) > 2 and len(a) != len(b) and common.total() == min(len(a), len(b)):
        return Cause.ITEMS
    return None


def _value_cause(old: str, new: str, common: int) -> Cause | None:
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


def _is_in_image(old: Any, new: Any) -> bool:
    """Return True if the first difference of two values is in an image."""
    if isinstance(old, dict) and isinstance(new, dict):
        if old.get("type") == new.get("type") and old.get("type") in ANY.image_types:
            return True
        pairs = [(old[name], new.get(name)) for name in old]
    elif isinstance(old, list) and isinstance(new, list):
        pairs = list(zip(old, new, strict=False))
    else:
        return False
    return next((_is_in_image(a, b) for a, b in pairs if a != b), False)


def _items(text: str) -> list[str]:
    paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
    lines = [part.strip() for part in text.splitlines() if part.strip()]
    return paragraphs if len(paragraphs) > 2 else lines


def _same_items(old: Sequence[str], new: Sequence[str]) -> bool:
    return old != new and Counter(old) == Counter(new)


def _sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unordered(value: Any) -> str:
    """Write a value so that neither keys nor lists have an order."""
    if isinstance(value, dict):
        return _sorted({name: _unordered(inner) for name, inner in value.items()})
    return _sorted(sorted(map(_unordered, value)) if isinstance(value, list) else value)


def _json(text: str) -> Any:
    return json_value(text) if text[:1] in ("{", "[") else None
