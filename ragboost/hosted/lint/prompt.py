"""Divide a request into the parts of its prompt, in the order in which APIs cache them.

Tools come first, then the system prompt, then the messages. Whitespace between JSON values, cache
breakpoints and fields that are no part of the prompt do not count.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ragboost.wires.body import has_cache_mark
from ragboost.wires.providers import CACHE_MARKS
from ragboost.wires.registry import ANY, CONTENTS

PROMPTS = tuple(dict.fromkeys((*ANY.messages, *ANY.prompts)))
_GIVEN = {"arguments", "input"}  # of a tool call, which the model reads as they are
_BYTES_PER_TOKEN = 4
# Anthropic's choices, which its messages are rendered with; others are enforced while decoding.
_CHOICES = ("any", "tool", "none")


@dataclass(frozen=True)
class PromptPart:
    """One tool, the system prompt, or one message."""

    path: str  # its place in the body, such as `messages[3]`
    place: str  # the same for reports, without numbers: `tools`, `system`, `user message`
    source: Any  # the decoded JSON

    @cached_property
    def value(self) -> Any:
        """The JSON without breakpoints."""
        return _joined(_plain(self.source))

    @cached_property
    def text(self) -> str:
        """The value as JSON, keys in the order of the request."""
        return _text(self.value)

    def text_beside(self, old: "PromptPart") -> str:
        """Return the text as it would be if its fields had the order and the nulls of another
        message's: templates read fields by name, and a null as one that is absent."""
        if self.place == "tools" or old.place == "tools":
            return self.text
        return _text(_aligned(self.value, old.value))

    @cached_property
    def size(self) -> int:
        """Its bytes in UTF-8."""
        return len(self.text.encode("utf-8", "surrogatepass"))

    @property
    def is_message(self) -> bool:
        """True for a message of the conversation, False for what stands above."""
        return self.place not in ("tools", "system")

    @property
    def blocks(self) -> list[Any]:
        """The blocks at which a breakpoint can be set; the part itself where it has none."""
        content = self.source
        if isinstance(content, dict) and not has_cache_mark(content) and self.place != "tools":
            content = next((content[n] for n in CONTENTS.values() if n in content), content)
        return content if isinstance(content, list) and content else [content]


@dataclass(frozen=True)
class PromptParts:
    """The parts of one request."""

    model: str  # empty if unknown
    options: Mapping[str, Any]  # other fields that change how the prompt is rendered
    parts: tuple[PromptPart, ...]  # in the order in which an API reads them
    is_marked: bool  # the API is asked to set a breakpoint at the end

    @cached_property
    def num_bytes(self) -> int:
        return sum([part.size for part in self.parts])

    def head(self) -> "PromptParts":
        """Return what stands above the messages."""
        above = tuple([part for part in self.parts if not part.is_message])
        return PromptParts(self.model, {}, above, False)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "PromptParts":
        model = body.get("model")
        options = {name: body.get(name) for name in (*ANY.head_options, *ANY.message_options)}
        choice = options.get("tool_choice")
        if not isinstance(choice, dict) or choice.get("type") not in _CHOICES:
            options["tool_choice"] = None
        name = model if isinstance(model, str) else ""
        return cls(name, options, tuple(_parts(body)), has_cache_mark(body))


def estimate_tokens(num_bytes: int) -> int:
    return num_bytes // _BYTES_PER_TOKEN


def common_length(a: str, b: str) -> int:
    """Count the characters with which two texts begin alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def conversation_name(*holders: Mapping[str, Any]) -> str:
    """Return the name that a logged request gives to its conversation; empty if none."""
    for holder in holders:
        for where in (holder, holder.get("ragboost"), holder.get("metadata")):
            for field in ("session_id", "conversation_id"):
                value = where.get(field) if isinstance(where, dict) else None
                if isinstance(value, str) and value:
                    return value
    return ""


def _parts(body: Mapping[str, Any]) -> Iterator[PromptPart]:
    for field in ANY.tools:
        for at, tool in enumerate(_list(body.get(field))):
            yield PromptPart(f"{field}[{at}]", "tools", tool)
    for field in ANY.instructions:
        if body.get(field):
            yield PromptPart(field, "system", body[field])
    for field in PROMPTS:
        value = body.get(field)
        if isinstance(value, str):
            yield PromptPart(field, "prompt", value)
        for at, message in enumerate(_list(value)):
            role = message.get("role", message.get("type")) if isinstance(message, dict) else None
            is_system = role in ANY.instruction_roles
            place = "system" if is_system else f"{role} message"[:40]
            yield PromptPart(f"{field}[{at}]", place, message)


def _plain(value: Any) -> Any:
    """Remove breakpoints, and write contents of one text block as a text, which is the same."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _plain(part) for name, part in value.items() if name not in CACHE_MARKS}
    for name in ANY.content:
        if name in kept:
            kept[name] = _joined(kept[name])
    return kept


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _aligned(new: Any, old: Any) -> Any:
    """Give the fields of a value the order and the nulls of another one's."""
    if isinstance(new, list) and isinstance(old, list):
        both = [_aligned(a, b) for a, b in zip(new, old, strict=False)]
        return both + new[len(old) :]
    if not (isinstance(new, dict) and isinstance(old, dict)):
        return new
    fields = {
        name: new.get(name) if name in _GIVEN else _aligned(new.get(name), value)
        for name, value in old.items()
        if name in new or value is None
    }
    return fields | {n: value for n, value in new.items() if n not in old and value is not None}


def _joined(content: Any) -> Any:
    if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
        block = content[0]
        if set(block) == {"type", "text"} and isinstance(block["text"], str):
            return block["text"]
    return content


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
