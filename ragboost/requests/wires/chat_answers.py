"""The assistant's messages in responses of OpenAI's chat completions, as a client sends them back.

A whole message stays as it came. The deltas of a stream are merged by the types of their values,
whatever the fields are called, so that providers' own ones are kept as well.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

AnswerMessage = dict[str, Any]

_MAX_DEPTH = 32  # of a message
# Strings that come in pieces. Of any other, a repetition of the first piece is not appended: some
# servers send names and formats with every event.
_TEXTS = frozenset(
    [
        *("arguments", "content", "data", "input", "output", "partial_json", "reasoning"),
        *("reasoning_content", "refusal", "summary", "text", "thinking", "transcript"),
    ]
)
_WHOLE = frozenset({"id", "role", "type"})  # strings of which the latest stands
_MAX_PARSED = 64  # looks at whether a call's arguments are complete; each reads all of them
_TEXT_PART = frozenset({"type", "text", "thinking", "summary", "signature"})
_CALLED = ("function", "custom")  # where a call has its name


def read_answers(answer: Mapping[str, Any]) -> list[AnswerMessage]:
    """Return the assistant's message of each choice; none if one is nested too deeply."""
    messages = [choice.get("message") for choice in _objects(answer.get("choices"))]
    if not _is_shallow(messages, _MAX_DEPTH):
        return []  # nobody could hash or store them
    return [_complete(message) for message in messages if isinstance(message, dict)]


class AnswerDeltas:
    """The assistant's messages of a stream, put together from its events."""

    def __init__(self) -> None:
        self._by_choice: dict[int, dict[str, Any]] = {}

    def add(self, event: Any) -> bool:
        """Add an event; return False if it is an error, no completion, or nested too deeply."""
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            return False
        for choice in _objects(event.get("choices")):
            if isinstance(delta := choice.get("delta"), dict):
                if not _is_shallow(delta, _MAX_DEPTH):
                    return False
                _merge_fields(self._by_choice.setdefault(_index(choice) or 0, {}), delta)
        return True

    def join(self) -> list[AnswerMessage]:
        messages = sorted(self._by_choice.items())
        return [
            _complete({"role": "assistant", "content": None, **_joined(m)}) for _, m in messages
        ]


class _Pieces:
    """A string that comes in pieces."""

    def __init__(self, piece: str) -> None:
        self._pieces = [piece] if piece else []
        self._num_chars = len(piece)
        self._num_parsed = 0

    def __str__(self) -> str:
        return "".join(self._pieces)

    def add(self, piece: str, *, is_text: bool) -> None:
        if piece and (is_text or self._pieces != [piece]):
            self._pieces.append(piece)
            self._num_chars += len(piece)

    def repeats(self, piece: str) -> bool:
        """Return True for arguments that are complete and sent once more."""
        return len(piece) == self._num_chars and piece == str(self) and self.is_object()

    def is_object(self) -> bool:
        """Return True for a complete JSON object, such as all of a call's arguments."""
        may_end = bool(self._pieces) and self._pieces[-1].rstrip().endswith("}")
        if not may_end or self._num_parsed == _MAX_PARSED:
            return False
        self._num_parsed += 1
        try:
            return isinstance(json.loads(str(self)), dict)
        except (ValueError, RecursionError):
            return False


class _Elements:
    """A list whose elements come in pieces: those with the same `index` or `id` are one.

    Texts without both continue the text before them.
    """

    def __init__(self) -> None:
        self._elements: list[Any] = []
        self._by_index: dict[int, dict[str, Any]] = {}
        self._by_id: dict[tuple[int | None, str], dict[str, Any]] = {}
        self._last: dict[str, Any] | None = None
        self._current: set[int] = set()  # Python's ids of those that the newest delta has a part of

    def add(self, delta: list[Any]) -> None:
        self._current.clear()
        for part in delta:
            if isinstance(part, dict):
                self._add(part)
            else:
                self._elements.append(part)
                self._last = None

    def join(self) -> list[Any]:
        return [_joined(element) for element in self._elements]

    def _add(self, part: dict[str, Any]) -> None:
        index, name = _index(part), _name(part)
        element = self._find(part, index, name)
        if element is None:
            element = {}
            self._elements.append(element)
        if index is not None:
            self._by_index[index] = element
        if name:
            self._by_id[index, name] = self._by_id[None, name] = element
        self._last = element
        self._current.add(id(element))
        _merge_fields(element, part)

    def _find(self, part: dict[str, Any], index: int | None, name: str) -> dict[str, Any] | None:
        if name and (known := self._by_id.get((index, name))) is not None:
            return known
        element = self._last if index is None else self._by_index.get(index)
        if element is None or (name and _name(element) not in ("", name)):
            return None
        return None if self._begins_another(element, part) else element

    def _begins_another(self, element: dict[str, Any], part: dict[str, Any]) -> bool:
        if part.get("type", element.get("type")) != element.get("type"):
            return True
        if _index(part) is not None or _name(part):
            return False
        if id(element) in self._current or str(element.get("signature", "")):  # it ends a text
            return True
        return not part.keys() | element.keys() <= _TEXT_PART


class _Calls(_Elements):
    """The tool calls of a message. Their indices are not to be trusted: another id, and a name
    behind complete arguments, begin another call."""

    def join(self) -> list[Any]:
        places, last = [], 0
        for element in self._elements:
            index = _index(element) if isinstance(element, dict) else None
            last = last if index is None else index
            places.append(last)
        in_order = sorted(zip(places, super().join(), strict=True), key=lambda pair: pair[0])
        return [_call(call) if isinstance(call, dict) else call for _, call in in_order]

    def _begins_another(self, element: dict[str, Any], part: dict[str, Any]) -> bool:
        called, name = _called(element), _called(part).get("name")
        known = str(called.get("name", ""))
        if not (name and known and isinstance(name, str)):
            return False
        if id(element) in self._current:
            return True
        arguments = called.get("arguments", called.get("input"))
        if not isinstance(arguments, _Pieces):
            return arguments is not None
        return str(arguments) != "" and (name != known or arguments.is_object())


def _merge_fields(fields: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for name, value in delta.items():
        if value is not None:
            fields[name] = _merged(fields.get(name), value, name)


def _merged(old: Any, value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _merged_text(old, value, name)
    if isinstance(value, dict):
        fields = old if isinstance(old, dict) else {}
        _merge_fields(fields, value)
        return fields
    if isinstance(value, list):
        elements = old
        if not isinstance(old, _Elements):
            elements = _Calls() if name == "tool_calls" else _Elements()
            if isinstance(old, _Pieces) and str(old):
                elements.add([{"type": "text", "text": str(old)}])
        elements.add(value)
        return elements
    return value


def _merged_text(old: Any, text: str, name: str) -> Any:
    if name in _WHOLE:
        return text or old or ""
    if isinstance(old, _Pieces):
        if not (name == "arguments" and old.repeats(text)):
            old.add(text, is_text=name in _TEXTS)
        return old
    if isinstance(old, _Elements):  # a content of parts goes on as a text
        old.add([{"type": "text", "text": text}] if text else [])
        return old
    return _Pieces(text)


def _joined(value: Any) -> Any:
    if isinstance(value, _Pieces):
        return str(value)
    if isinstance(value, _Elements):
        return value.join()
    if isinstance(value, dict):
        return {name: _joined(field) for name, field in value.items()}
    return value


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a call as messages have it: without the index, which only streams have."""
    kept = {name: value for name, value in call.items() if name != "index"}
    return {"id": "", "type": "function", **kept}


def _complete(message: Mapping[str, Any]) -> AnswerMessage:
    """Return a message that servers accept: they refuse an empty list of calls, and some a message
    with nothing but null in it."""
    kept = {name: v for name, v in message.items() if v or name != "tool_calls"}
    if not isinstance(kept.get("role"), str):
        kept = {**kept, "role": "assistant"}
    if kept.get("content") is None:
        has_more = any(value for name, value in kept.items() if name != "role")
        kept["content"] = None if has_more else ""
    return kept


def _called(call: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((call[name] for name in _CALLED if isinstance(call.get(name), dict)), {})


def _name(part: Mapping[str, Any]) -> str:
    name = part.get("id")
    return name if isinstance(name, str) else ""


def _index(part: Mapping[str, Any]) -> int | None:
    index = part.get("index")
    return index if type(index) is int else None


def _objects(items: Any) -> Iterator[dict[str, Any]]:
    return (
        (item for item in items if isinstance(item, dict)) if isinstance(items, list) else iter(())
    )


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)
