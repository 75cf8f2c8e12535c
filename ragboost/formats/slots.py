"""The parts of a request body that may hold documents: instructions, user messages, tool results.

Knows OpenAI chat completions, completions and Responses, and Anthropic messages. The model's own
messages are not among them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ragboost.formats.content_blocks import has_cache_mark
from ragboost.formats.groups import Value

Path = tuple[str | int, ...]

_INSTRUCTIONS = ("system", "instructions")
CONSTANT_ROLES = ("system", "developer")
_TOOL_ROLES = ("tool", "function")
_TEXT_TYPES = (None, "text", "input_text")
_LISTS = ("messages", "input")


class Slot(NamedTuple):
    """A text, or a list of content blocks, that may hold documents.

    Attributes:
        path: its keys and indices from the root of the body.
        value: the text or list.
        is_tool: it is a tool's result.
        is_leading: only instructions precede its message.
    """

    path: Path
    value: Value
    is_tool: bool = False
    is_leading: bool = False

    @property
    def message(self) -> int | None:
        """Index in `messages`; None for another field."""
        at = self.path[1] if self.path[0] == "messages" else None
        return at if isinstance(at, int) else None

    @property
    def is_results(self) -> bool:
        """True for the list of results of a file search."""
        return self.path[-1] == "results"


def find_slots(body: Mapping[str, Any]) -> Iterator[Slot]:
    """Yield the slots in the order in which the model reads them."""
    for name in _INSTRUCTIONS:
        if name in body:
            yield from _content((name,), body[name], is_tool=False, is_leading=True)
    # The backend prepends its own stored conversation to `input`.
    is_first = not (body.get("previous_response_id") or body.get("conversation"))
    for name in _LISTS:
        messages = body.get(name)
        if isinstance(messages, list):
            yield from _messages(name, messages, is_leading=is_first)
            return
    for name in ("prompt", "input"):
        if isinstance(body.get(name), str):
            yield Slot((name,), body[name], is_leading=is_first)


def _messages(name: str, messages: list[Any], *, is_leading: bool) -> Iterator[Slot]:
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            is_leading = False
            continue
        role, kind = message.get("role"), message.get("type")
        where: Path = (name, at)
        if has_cache_mark(message):
            pass
        elif kind == "function_call_output":
            yield from _content((*where, "output"), message.get("output"), is_tool=True)
        elif kind == "file_search_call" and isinstance(message.get("results"), list):
            yield Slot((*where, "results"), message["results"], is_tool=True)
        elif role in _TOOL_ROLES:
            yield from _content((*where, "content"), message.get("content"), is_tool=True)
        elif role == "user" or role in CONSTANT_ROLES:
            content = message.get("content")
            yield from _content((*where, "content"), content, is_leading=is_leading)
        is_leading = is_leading and role in CONSTANT_ROLES


def _content(
    path: Path, content: Any, *, is_tool: bool = False, is_leading: bool = False
) -> Iterator[Slot]:
    if isinstance(content, str):
        yield Slot(path, content, is_tool, is_leading)
    if not isinstance(content, list):
        return
    yield Slot(path, content, is_tool, is_leading)
    for at, part in enumerate(content):
        if not isinstance(part, dict) or has_cache_mark(part):
            continue
        if part.get("type") == "tool_result":
            yield from _content((*path, at, "content"), part.get("content"), is_tool=True)
        elif part.get("type") in _TEXT_TYPES and isinstance(part.get("text"), str):
            yield Slot((*path, at, "text"), part["text"], is_tool, is_leading)


def is_instruction(path: Path) -> bool:
    """Return True for a field that the model reads before all messages."""
    return path[0] in _INSTRUCTIONS


def put(body: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """Return a body with another value at a path that shares all other objects."""
    new: dict[str, Any] = _put(body, path, value)
    return new


def _put(old: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    new: Any = list(old) if isinstance(old, list) else dict(old)
    new[path[0]] = _put(old[path[0]], path[1:], value)
    return new


def at_path(body: Mapping[str, Any], path: Path) -> Any:
    """Return the value at a path."""
    value: Any = body
    for step in path:
        value = value[step]
    return value
