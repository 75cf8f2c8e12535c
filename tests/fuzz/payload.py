"""Read what the backend received: raw JSON values by field and message, and all texts in order.

A small parser of its own: it keeps the bytes of values, which `json` alone does not.
"""

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import Any

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_FIRST = ("documents", "chat_template_kwargs", "system", "instructions")  # above the messages
_LAST = ("messages", "input", "prompt")


class Payload:
    """A request body.

    Attributes:
        raw: its text.
        fields: the bytes of each field, as text.
        messages: the bytes of each message or input item.
        decoded: the body.
    """

    def __init__(self, body: str) -> None:
        self.raw = body
        self.decoded: dict[str, Any] = json.loads(body)
        self.fields = dict(_members(body))
        listed = self.fields.get("messages", self.fields.get("input", ""))
        self.messages = tuple(_elements(listed)) if listed.startswith("[") else ()

    @cached_property
    def texts(self) -> list[str]:
        """All texts of the prompt, in the order in which the model reads them."""
        return [text for name in (*_FIRST, *_LAST) for text in strings(self.decoded.get(name))]

    @cached_property
    def whole(self) -> str:
        """All texts, one after the other."""
        return "\n\x00\n".join(self.texts)

    @cached_property
    def question_texts(self) -> list[str]:
        """The texts of the last message of the user, or the prompt."""
        if "prompt" in self.decoded:
            return list(strings(self.decoded["prompt"]))
        listed = self.decoded.get("messages", self.decoded.get("input"))
        if isinstance(listed, str):
            return [listed]
        own = [m for m in listed or () if m.get("role") == "user"]
        return list(strings(own[-1]["content"])) if own else []


def strings(value: Any) -> Iterator[str]:
    """Yield the texts of a decoded value; of JSON inside a text, the texts in that."""
    if isinstance(value, str):
        inner = _inner(value) if value[:1] in ("[", "{") else None
        if inner is None:
            yield value
        else:
            yield from strings(inner)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def _inner(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _members(text: str) -> Iterator[tuple[str, str]]:
    at = _skip(text, 0) + 1
    while text[at := _skip(text, at)] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        at += text[at] == ","


def _elements(text: str) -> Iterator[str]:
    at = 1
    while text[at := _skip(text, at)] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield text[at:end]
        at = _skip(text, end)
        at += text[at] == ","
