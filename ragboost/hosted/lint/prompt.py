"""Divide a logged request into the parts of its prompt, in the order in which APIs cache them.

Tools come first, then the system prompt, then the messages. Whitespace between JSON values, cache
breakpoints and fields that are no part of the prompt do not count.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ragboost.wires.providers import CACHE_MARKS
from ragboost.wires.registry import ANY

_PROMPTS = tuple(dict.fromkeys((*ANY.messages, *ANY.prompts)))
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True)
class LoggedPart:
    """One tool, the system prompt, or one message."""

    path: str  # its place in the body, such as `messages[3]`
    place: str  # the same for reports, without numbers: `tools`, `system`, `user message`
    value: Any  # the decoded JSON, without breakpoints
    text: str  # the value as JSON, keys in the order of the request

    @cached_property
    def size(self) -> int:
        """Its bytes in UTF-8."""
        return len(self.text.encode("utf-8", "surrogatepass"))

    @cached_property
    def digest(self) -> bytes:
        """Hash of its text."""
        return hashlib.sha256(self.text.encode("utf-8", "surrogatepass")).digest()[:16]

    @property
    def is_message(self) -> bool:
        """True for a message of the conversation, False for what stands above."""
        return self.place not in ("tools", "system")


@dataclass(frozen=True)
class LoggedPrompt:
    where: str  # file and line
    model: str  # empty if unknown
    name: str  # of its conversation; empty if it is not named
    parts: tuple[LoggedPart, ...]  # in the order in which an API reads them

    @property
    def messages(self) -> tuple[LoggedPart, ...]:
        return tuple([part for part in self.parts if part.is_message])

    @cached_property
    def num_bytes(self) -> int:
        return sum([part.size for part in self.parts])


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


def read_prompt(where: str, row: Mapping[str, Any]) -> LoggedPrompt | None:
    """Read a logged request; return None if the object has no prompt.

    Args:
        row: the body of a request, or an object with one as `body`, `request` or `request_body`.
    """
    body = body_of(row)
    if not any(body.get(name) for name in _PROMPTS):
        return None
    model = body.get("model")
    return LoggedPrompt(
        where,
        model if isinstance(model, str) else "",
        _name(row) or _name(body),
        tuple(_parts(body)),
    )


def body_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the body of a request in a line, which may be the line's object itself."""
    for name in ("body", "request", "request_body"):
        if isinstance(inner := row.get(name), dict):
            return inner
    return row


def _name(holder: Mapping[str, Any]) -> str:
    ours = holder.get("ragboost")
    metadata = holder.get("metadata")
    for where in (holder, ours, metadata):
        for field in ("session_id", "conversation_id"):
            value = where.get(field) if isinstance(where, dict) else None
            if isinstance(value, str) and value:
                return value
    return ""


def _parts(body: Mapping[str, Any]) -> Iterator[LoggedPart]:
    for field in ANY.tools:
        for at, tool in enumerate(_list(body.get(field))):
            yield _part(f"{field}[{at}]", "tools", tool)
    for field in ANY.instructions:
        if body.get(field):
            yield _part(field, "system", body[field])
    for field in _PROMPTS:
        value = body.get(field)
        if isinstance(value, str):
            yield _part(field, "prompt", value)
        for at, message in enumerate(_list(value)):
            role = message.get("role", message.get("type")) if isinstance(message, dict) else None
            is_system = role in ANY.instruction_roles
            place = "system" if is_system else f"{role} message"[:40]
            yield _part(f"{field}[{at}]", place, message)


def _part(path: str, place: str, value: Any) -> LoggedPart:
    value = _plain(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return LoggedPart(path, place, value, text)


def _plain(value: Any) -> Any:
    """Remove breakpoints, and write contents of one text block as a text, which is the same."""
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _plain(part) for name, part in value.items() if name not in CACHE_MARKS}
    for name in ANY.content:
        content = kept.get(name)
        if isinstance(content, list) and len(content) == 1 and isinstance(content[0], dict):
            block = content[0]
            if set(block) == {"type", "text"} and isinstance(block["text"], str):
                kept[name] = block["text"]
    return kept


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
