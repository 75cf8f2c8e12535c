"""Find messages, texts and the question in a request body, whichever API it is meant for.

Texts that may hold documents are instructions, user messages and tool results; the model's own
messages are not among them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.requests.wires.registry import ANY, CONTENTS

Path = tuple[str | int, ...]
"""Keys and indices from the root of a body."""

Value = str | list[Any]
"""A text, or a list of content blocks or results, that may hold documents."""

REWRITTEN_LISTS = tuple([name for name in ANY.rewritten if name in ANY.messages])
_PROMPT = next(name for name in ANY.rewritten if name in ANY.prompts)
_CONTAINERS = frozenset({dict, list})
TEXT_TYPES = (None, *ANY.text_types)


class Slot(NamedTuple):
    """A text, or a list of content blocks, that may hold documents."""

    path: Path
    value: Value
    is_tool: bool = False  # a tool's result
    is_leading: bool = False  # only instructions precede its message
    is_user: bool = False  # the user's own message, or a prompt

    @property
    def place(self) -> int | None:
        """Index of the message in its list; None for a text beside it."""
        at = self.path[1] if len(self.path) > 1 else None
        return at if isinstance(at, int) else None

    @property
    def message(self) -> int | None:
        """The same in a list of messages; else None."""
        return self.place if self.path[0] in ANY.messages else None

    @property
    def is_results(self) -> bool:
        return self.path[-1] in ANY.search_items.values()


def message_field(body: Mapping[str, Any]) -> str:
    """Return the field of the messages that are sent again as they were sent; empty if none."""
    return next(filter(body.__contains__, REWRITTEN_LISTS), "")


def resent_list(body: Mapping[str, Any]) -> str:
    """Return the field of the messages that a client resends with every turn; empty if there is
    none, or if the backend keeps them."""
    name = message_list(body)
    return "" if name == "input" and body.get("store") is not False else name


def message_list(body: Mapping[str, Any]) -> str:
    """Return the field that is a list of messages; empty if there is none."""
    return next((name for name in ANY.messages if isinstance(body.get(name), list)), "")


def is_stored(body: Mapping[str, Any]) -> bool:
    """Return True if the backend prepends its own stored conversation."""
    return any(map(body.get, ANY.stored))


def num_instructions(messages: Sequence[Any]) -> int:
    """Count the messages before the first that is no instruction."""
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in ANY.instruction_roles:
            return at
    return len(messages)


def find_slots(body: Mapping[str, Any]) -> list[Slot]:
    """Return the slots in the order in which the model reads them."""
    slots: list[Slot] = []
    for name in ANY.instructions:
        if name in body:
            _add_content(slots, (name,), body[name], is_leading=True)
    is_first = not is_stored(body)
    if name := message_list(body):
        _add_messages(slots, name, body[name], is_leading=is_first)
        return slots
    texts = [name for name in ANY.prompts if isinstance(body.get(name), str)]
    slots += [Slot((name,), body[name], False, is_first, True) for name in texts]
    return slots


def _add_messages(slots: list[Slot], field: str, messages: list[Any], *, is_leading: bool) -> None:
    content_field, instruction_roles = CONTENTS[field], ANY.instruction_roles
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            is_leading = False
            continue
        role, content = message.get("role"), message.get(content_field)
        is_instruction = role in instruction_roles
        if "type" in message or type(content) is not str:
            _add_message(slots, (field, at), message, is_leading=is_leading)
        elif role == "user" or is_instruction:
            slots.append(
                Slot((field, at, content_field), content, False, is_leading, role == "user")
            )
        elif role in ANY.tool_roles:
            slots.append(Slot((field, at, content_field), content, True))
        is_leading = is_leading and is_instruction


def _add_message(
    slots: list[Slot], path: Path, message: Mapping[str, Any], *, is_leading: bool
) -> None:
    role, kind, content_field = message.get("role"), message.get("type"), CONTENTS[str(path[0])]
    kind = kind if isinstance(kind, str) else ""
    if kind in ANY.result_items:
        name = ANY.result_items[kind]
        _add_content(slots, (*path, name), message.get(name), is_tool=True)
    elif kind in ANY.search_items and isinstance(message.get(ANY.search_items[kind]), list):
        name = ANY.search_items[kind]
        slots.append(Slot((*path, name), message[name], is_tool=True))
    elif role in ANY.tool_roles:
        _add_content(slots, (*path, content_field), message.get(content_field), is_tool=True)
    elif role == "user" or role in ANY.instruction_roles:
        content = message.get(content_field)
        is_user = role == "user"
        _add_content(slots, (*path, content_field), content, is_leading=is_leading, is_user=is_user)


def _add_content(
    slots: list[Slot],
    path: Path,
    content: Any,
    *,
    is_tool: bool = False,
    is_leading: bool = False,
    is_user: bool = False,
) -> None:
    if isinstance(content, str):
        slots.append(Slot(path, content, is_tool, is_leading, is_user))
    if not isinstance(content, list):
        return
    slots.append(Slot(path, content, is_tool, is_leading))
    for at, part in enumerate(content):
        if not isinstance(part, dict):
            continue
        kind = part.get("type")
        if isinstance(kind, str) and kind in ANY.result_blocks:
            name = ANY.result_blocks[kind]
            _add_content(slots, (*path, at, name), part.get(name), is_tool=True)
        elif kind in TEXT_TYPES and isinstance(part.get("text"), str):
            slots.append(Slot((*path, at, "text"), part["text"], is_tool, is_leading, is_user))


def tool_name(tool: Any) -> str:
    """Return the name of a tool; empty if it has none."""
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    return str(inner.get("name") or "") if isinstance(inner, dict) else ""


def is_instruction(path: Path) -> bool:
    """Return True for a field that the model reads before all messages."""
    return path[0] in ANY.instructions


def find_question(body: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """Find the user's question: the last text of the last user message, or the prompt.

    Returns:
        Its text and the index of its message, None for a prompt; None if there is no question in
        a body whose messages are sent again as they were sent.
    """
    field = message_field(body)
    if not field:
        prompt = body.get(_PROMPT)
        return (prompt, None) if isinstance(prompt, str) else None
    messages, content = body[field], CONTENTS[field]
    for at in range(len(messages) - 1, -1, -1) if isinstance(messages, list) else ():
        message = messages[at]
        if isinstance(message, dict) and message.get("role") == "user":
            text = _content_text(message.get(content))
            return None if text is None else (text, at)
    return None


def question_field(body: Mapping[str, Any]) -> str:
    return message_field(body) or _PROMPT


def replace_question(
    body: Mapping[str, Any], question: str, *, message: int | None
) -> dict[str, Any]:
    """Return a body with another question that shares all other messages and fields."""
    if message is None:
        return {**body, _PROMPT: question}
    field = message_field(body)
    content, messages = CONTENTS[field], list(body[field])
    old = messages[message]
    messages[message] = {**old, content: _with_text(old[content], question)}
    return {**body, field: messages}


def content_of(body: Mapping[str, Any], message: int) -> tuple[Path, Any]:
    field = message_field(body)
    content = CONTENTS[field]
    return (field, message, content), body[field][message].get(content)


def question_part(content: Any) -> int:
    """Return the index of the content part before which documents are inserted; 0 for a text."""
    return (_last_text(content) or 0) if isinstance(content, list) else 0


def _content_text(content: Any) -> str | None:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    at = _last_text(content)
    return "" if at is None else str(content[at]["text"])


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return text
    at = _last_text(content)
    if at is None:  # only images or sound: the text goes first
        return [{"type": "text", "text": text}, *content]
    return [*content[:at], {**content[at], "text": text}, *content[at + 1 :]]


def _last_text(parts: list[Any]) -> int | None:
    for at in range(len(parts) - 1, -1, -1):
        part = parts[at]
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return at
    return None


def put(
    body: Mapping[str, Any], path: Path, value: Any, *, copies: dict[int, Any] | None = None
) -> dict[str, Any]:
    """Return a body with another value at a path that shares all other objects.

    Args:
        copies: the objects that earlier calls copied, by id; they are changed in place, so that
            many messages are replaced in time proportional to the body.
    """
    new: dict[str, Any] = _put(body, path, value, {} if copies is None else copies)
    return new


def _put(old: Any, path: Path, value: Any, copies: dict[int, Any]) -> Any:
    if not path:
        return value
    new: Any = copies.get(id(old))
    if new is None:
        new = list(old) if isinstance(old, list) else dict(old)
        copies[id(new)] = new
    new[path[0]] = _put(old[path[0]], path[1:], value, copies)
    return new


def at_path(body: Mapping[str, Any], path: Path) -> Any:
    value: Any = body
    for step in path:
        value = value[step]
    return value


def levels_of(value: Any) -> Iterator[list[Any]]:
    """Yield the objects and lists of decoded JSON level by level, not recursively; the value, which
    is one of them, first."""
    level = [value]
    while level:
        yield level
        level = [
            child
            for holder in level
            for child in (holder.values() if type(holder) is dict else holder)
            if type(child) in _CONTAINERS
        ]
