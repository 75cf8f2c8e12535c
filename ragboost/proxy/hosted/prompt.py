"""Divide a request into the parts of its prompt, in the order in which APIs cache them.

Tools come first, then the system prompt, then the messages. A part is its bytes until they differ
from those of another; then it is decoded and brought into the normal form of what renders it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, AnyStr

import msgspec
from msgspec import Raw

from ragboost.requests.json_body import decode_message
from ragboost.requests.wires.normal_form import (
    EngineKind,
    is_messages_api,
    normal_instructions,
    normal_message,
    normal_tool,
)
from ragboost.requests.wires.registry import ANY

PROMPTS = tuple(dict.fromkeys((*ANY.messages, *ANY.prompts)))
_BYTES_PER_TOKEN = 4
_NOTHING = (b"null", b'""', b"[]", b"{}")
# Anthropic's choices, which its messages are rendered with; others are enforced while decoding.
_CHOICES = ("any", "tool", "none")


@dataclass(frozen=True, eq=False)
class PromptPart:
    """One tool, the system prompt, or one message."""

    path: str  # its place in the body, such as `messages[3]`
    raw: Raw
    kind: EngineKind

    @cached_property
    def source(self) -> Any:
        """The decoded JSON."""
        return decode_message(self.raw)

    @cached_property
    def place(self) -> str:
        """The path for reports, without numbers: `tools`, `system`, `user message`."""
        name, bracket, _ = self.path.partition("[")
        if name in ANY.tools:
            return "tools"
        if name in ANY.instructions:
            return "system"
        return role_place(self.source) if bracket else "prompt"

    @cached_property
    def value(self) -> Any:
        """The JSON in its normal form."""
        if self.place == "tools":
            return normal_tool(self.source, self.kind)
        if self.path in ANY.instructions:
            return normal_instructions(self.source, self.kind)
        return normal_message(self.source, self.kind)

    @cached_property
    def text(self) -> str:
        """The value as JSON."""
        if isinstance(self.value, str):
            return self.value
        return json.dumps(self.value, ensure_ascii=False)

    @property
    def size(self) -> int:
        """Its bytes in UTF-8, about."""
        return text_bytes(self.raw)

    @property
    def is_message(self) -> bool:
        """True for a message of the conversation, False for what stands above."""
        return self.place not in ("tools", "system")


@dataclass(frozen=True)
class PromptParts:
    """The parts of one request."""

    model: str  # empty if unknown
    options: Mapping[str, Any]  # other fields that change how the prompt is rendered
    parts: Sequence[PromptPart]  # in the order in which an API reads them
    num_first: int  # of these, tools and instructions that the client sends first
    num_above: int  # these, and later system messages that are moved to the front

    @classmethod
    def of(
        cls,
        head: Mapping[str, Raw],
        field: str,
        messages: Sequence[Raw],
        *,
        num_above: int,
        kind: EngineKind = "",
    ) -> "PromptParts":
        """Divide a request: its messages, of which `num_above` are instructions before the first
        other one, are of `field`, or the prompt that it is; `head` are its other fields."""
        names = (*ANY.head_options, *ANY.message_options)
        options = {name: decode_message(head[name]) for name in names if name in head}
        choice = options.get("tool_choice")
        if not isinstance(choice, dict) or choice.get("type") not in _CHOICES:
            options["tool_choice"] = None
        model = decode_message(head["model"]) if "model" in head else None
        name = model if isinstance(model, str) else ""
        parts = [PromptPart(path, raw, kind) for path, raw in _head_parts(head)]
        is_list = field in ANY.messages
        turns = [
            PromptPart(f"{field}[{at}]" if is_list else field, raw, kind)
            for at, raw in enumerate(messages)
        ]
        parts += turns[:num_above]
        num_first, turns = len(parts), turns[num_above:]
        if moves_system(head, kind):
            parts += [part for part in turns if is_system(part.raw)]
            turns = [part for part in turns if not is_system(part.raw)]
        return cls(name, options, [*parts, *turns], num_first, len(parts))

    @cached_property
    def num_bytes(self) -> int:
        return sum(part.size for part in self.parts)


def estimate_tokens(num_bytes: int) -> int:
    return num_bytes // _BYTES_PER_TOKEN


def text_bytes(raw: Raw | bytes) -> int:
    """Return about how long a text is in UTF-8, and any other JSON without escaped letters."""
    data = bytes(raw)
    num_escaped = data.count(b"\\u")
    if data[:1] == b'"':
        return max(0, len(data) - 2 - data.count(b"\\") - 2 * num_escaped)
    return len(data) - 3 * num_escaped


def prompt_bytes(fields: Mapping[str, Raw]) -> int:
    """Return the bytes of a body's prompt, about."""
    names = (*ANY.tools, *ANY.instructions, *PROMPTS)
    return sum(text_bytes(fields[name]) for name in names if name in fields)


def common_length(a: AnyStr, b: AnyStr) -> int:
    """Count the characters, or bytes, with which two texts begin alike."""
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


def role_place(message: Any) -> str:
    """Return what a message is, for reports."""
    role = message.get("role", message.get("type")) if isinstance(message, dict) else None
    return "system" if role in ANY.instruction_roles else f"{role} message"[:40]


def moves_system(head: Mapping[str, Raw], kind: EngineKind) -> bool:
    """Return True if what renders a request may move later system messages to the front.

    On the Messages API, releases of vLLM before inline system messages do, and SGLang does for a
    chat template that has no such messages.
    """
    if kind not in ("vllm", "sglang"):
        return False
    return is_messages_api({n: decode_message(head[n]) for n in ("system", "tools") if n in head})


def is_system(message: Raw) -> bool:
    """Return True for a message with instructions; decodes none that cannot be one."""
    raw = bytes(message)
    return any(f'"{role}"'.encode() in raw for role in ANY.instruction_roles) and (
        role_place(decode_message(message)) == "system"
    )


def _head_parts(head: Mapping[str, Raw]) -> list[tuple[str, Raw]]:
    parts = []
    for field in ANY.tools:
        if field in head and bytes(head[field])[:1] == b"[":
            tools = elements(head[field])
            parts += [(f"{field}[{at}]", tool) for at, tool in enumerate(tools)]
    parts += [
        (f, head[f]) for f in ANY.instructions if f in head and bytes(head[f]) not in _NOTHING
    ]
    return parts


def elements(raw: Raw) -> list[Raw]:
    """Return the bytes of each element of a list."""
    try:
        return _ELEMENTS.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # lone surrogates, NaN
        return [Raw(json.dumps(value).encode()) for value in decode_message(raw)]


_ELEMENTS = msgspec.json.Decoder(list[Raw])
