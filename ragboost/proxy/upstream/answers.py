"""Read the assistant's message on the side of an answer that is relayed.

Keeps a bounded copy of the answer's bytes and parses them when asked. Does not know sessions.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from ragboost.cache_sync.usage import Usage
from ragboost.proxy.upstream.sse import EVENT_END, event_data
from ragboost.proxy.upstream.usage_taps import Tap

_MAX_BYTES = 8 * 1024 * 1024
_DONE = b"data: [DONE]"
_TAIL_BYTES = 64
_DECODER = msgspec.json.Decoder()


Message = dict[str, Any]
"""One assistant message, decoded."""


class AnswerReader:
    """Collects one answer. The relay calls `start` for a readable 200, then `feed` and `finish`.

    Args:
        on_whole: called once with the assistant's message of each choice, as soon as the end has
            been seen (that of the body, or the stream's `[DONE]`, before the client gets it); with
            none if the answer is too long, an error, or nothing that we understand. Not called for
            an answer that is cut.

    Attributes:
        is_ending: the client may have the whole answer soon; always so when `on_whole` is called.
    """

    def __init__(self, on_whole: Callable[[list[Message]], None]) -> None:
        self.is_ending = False
        self._on_whole = on_whole
        self._is_whole = False
        self._is_stream = False
        self._num_bytes: int | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._tail = b""

    def start(self, *, is_stream: bool, num_bytes: int | None) -> None:
        """The answer's head has arrived, maybe with the length of its body."""
        self._num_bytes = num_bytes
        self._is_stream = is_stream
        self.is_ending = not is_stream  # a JSON answer is sent when it is complete

    def feed(self, chunk: bytes) -> None:
        """Keep a copy of the backend's bytes."""
        self._size += len(chunk)
        if self._size <= _MAX_BYTES:
            self._chunks.append(chunk)
        if self._size == self._num_bytes:
            self.finish()
        elif self._is_stream and not self._is_whole:
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
            if _DONE in self._tail:
                self.finish()

    def finish(self) -> None:
        """The backend has sent everything."""
        if not self._is_whole:
            self.is_ending = self._is_whole = True
            self._on_whole(self._messages())

    def _messages(self) -> list[Message]:
        if self._size > _MAX_BYTES:
            return []
        data = b"".join(self._chunks)
        return _from_events(data) if self._is_stream else _from_json(data)


class ReadingTap:
    """Another tap with an `AnswerReader` in front of it.

    Attributes:
        changes_length: the inner tap's.
    """

    def __init__(self, inner: Tap, reader: AnswerReader) -> None:
        self._inner = inner
        self._reader = reader
        self.changes_length = inner.changes_length

    @property
    def usage(self) -> Usage | None:
        """What the inner tap found."""
        return self._inner.usage

    def feed(self, chunk: bytes) -> bytes:
        """Show the chunk to both."""
        self._reader.feed(chunk)
        return self._inner.feed(chunk)

    def finish(self) -> bytes:
        """Finish the inner tap; whether the answer is whole is for the relay to say."""
        return self._inner.finish()


def _from_json(data: bytes) -> list[Message]:
    answer = _decode(data)
    choices = answer.get("choices") if isinstance(answer, dict) else None
    found: dict[int, Message] = {}
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            found[len(found)] = _clean(message)
    return list(found.values())


def _from_events(data: bytes) -> list[Message]:
    found: dict[int, Message] = {}
    for event in EVENT_END.split(data):
        text = event_data(event).strip()
        if not text or text == b"[DONE]":
            continue
        answer = _decode(text)
        if not isinstance(answer, dict) or "error" in answer:
            return []
        choices = answer.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            delta = choice.get("delta") if isinstance(choice, dict) else None
            if isinstance(delta, dict):
                at = choice.get("index")
                _add(found.setdefault(at if isinstance(at, int) else 0, {}), delta)
    return [_clean(found[at]) for at in sorted(found)]


def _add(message: Message, delta: Message) -> None:
    """Append one delta: strings grow, tool calls are merged by their index."""
    content = delta.get("content")
    if isinstance(content, str):
        message["content"] = (message.get("content") or "") + content
    calls = delta.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if not isinstance(call, dict):
            continue
        known = message.setdefault("_calls", {})
        at = call.get("index")
        at = at if isinstance(at, int) else len(known)
        whole = known.setdefault(at, {"id": "", "type": "function", "function": {}})
        whole["id"] = call.get("id") or whole["id"]
        function = call.get("function")
        for name in ("name", "arguments"):
            part = function.get(name) if isinstance(function, dict) else None
            if isinstance(part, str):
                whole["function"][name] = whole["function"].get(name, "") + part


def _clean(message: Message) -> Message:
    """The message as a client sends it back: role, content, tool calls."""
    calls = message.get("tool_calls")
    if "_calls" in message:
        calls = [message["_calls"][at] for at in sorted(message["_calls"])]
    content = message.get("content")
    clean: Message = {"role": "assistant", "content": content}
    if calls:
        clean["tool_calls"] = calls
    elif content is None:
        clean["content"] = ""
    return clean


def _decode(data: bytes) -> Any:
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
