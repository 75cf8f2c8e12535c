"""Read `usage` on the side of a response that is relayed.

A tap sees each chunk and returns what the client gets: the same bytes, except that `StrippingTap`
takes out the one event that the proxy asked for and the client did not. Does not know HTTP.
"""

import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from ragboost.cache_sync.usage import Usage, merge_usage, read_usage
from ragboost.proxy.upstream.sse import EVENT_END, event_data

_MAX_JSON_BYTES = 4 * 1024 * 1024
_HEAD_BYTES = 4 * 1024
_TAIL_BYTES = 32 * 1024
_MAX_EVENT_BYTES = 1024 * 1024
_PROMPT_IDS = b'"prompt_token_ids"'
_NULL = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    usage: msgspec.Raw = _NULL
    choices: list[msgspec.Raw] | None = None
    message: msgspec.Raw = _NULL  # Anthropic's first event
    response: msgspec.Raw = _NULL  # OpenAI's Responses
    prompt_token_ids: msgspec.Raw = _NULL  # vLLM


_FIELDS = ("usage", "message", "response", "prompt_token_ids")
_ANSWER = msgspec.json.Decoder(_Answer)
_VALUE = msgspec.json.Decoder()


class Tap(Protocol):
    """Sees the chunks of one response, in order.

    Attributes:
        usage: what was found, complete after `finish`.
        changes_length: the client may get fewer bytes than the backend sent.
    """

    changes_length: bool

    @property
    def usage(self) -> Usage | None:
        """What was found."""

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk and return the bytes to send now, maybe none."""

    def finish(self) -> bytes:
        """Return the bytes still held back; the response is over."""


class JsonTap:
    """For an answer in one JSON object."""

    changes_length = False

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._chunks: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> bytes:
        """Keep a bounded copy."""
        self._size += len(chunk)
        if self._size <= _MAX_JSON_BYTES:
            self._chunks.append(chunk)
        return chunk

    def finish(self) -> bytes:
        """Parse the copy."""
        if self._size <= _MAX_JSON_BYTES:
            answer = _parse(b"".join(self._chunks))
            self.usage = _usage(answer)
        return b""


class StreamTap:
    """For server-sent events that are relayed as they are.

    Usage stands near the end of a stream, and near its beginning too in Anthropic's: both are kept.
    """

    changes_length = False

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._head = b""
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def feed(self, chunk: bytes) -> bytes:
        """Keep the first and the last bytes."""
        if len(self._head) < _HEAD_BYTES:
            self._head += chunk[: _HEAD_BYTES - len(self._head)]
        self._tail.append(chunk)
        self._tail_size += len(chunk)
        while self._tail_size - len(self._tail[0]) >= _TAIL_BYTES:
            self._tail_size -= len(self._tail.popleft())
        return chunk

    def finish(self) -> bytes:
        """Look for the last event that tells of cached tokens, else of a prompt."""
        tail = b"".join(self._tail)
        found = [*_usages(self._head), *_usages(tail)] or _loose_usages(tail)
        self.usage = merge_usage(found)
        return b""


class StrippingTap:
    """For server-sent events with a usage event that the client did not ask for.

    Holds back an incomplete event until its end arrives.
    """

    changes_length = True

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """Return all complete events, without the usage event."""
        data = self._held + chunk if self._held else chunk
        passed: list[bytes] = []
        start = 0
        for end in EVENT_END.finditer(data):
            passed.append(self._filter(data[start : end.end()]))
            start = end.end()
        self._held = data[start:]
        if len(self._held) > _MAX_EVENT_BYTES:
            passed.append(self.finish())
        return b"".join(passed)

    def finish(self) -> bytes:
        """Return an event without its end."""
        held, self._held = self._held, b""
        return held

    def _filter(self, event: bytes) -> bytes:
        if b'"usage"' not in event:
            return event
        answer = _parse_event(event)
        found = _usage(answer)
        self.usage = merge_usage([self.usage, found])
        is_extra = answer is not None and answer.choices == [] and found is not None
        return b"" if is_extra else event


def _usages(data: bytes) -> Iterator[Usage]:
    """What each whole event says."""
    for event in EVENT_END.split(data):
        if b'"usage"' in event and (usage := _usage(_parse_event(event))):
            yield usage


def _loose_usages(data: bytes) -> list[Usage]:
    """The last usage of an event whose beginning is lost: OpenAI's Responses end with an event that
    holds the whole answer."""
    at = data.rfind(b'"usage":')
    if at < 0:
        return []
    text = data[at + len(b'"usage":') :].decode("utf-8", "replace").lstrip()
    try:
        value, _ = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return []
    usage = read_usage({"usage": value})
    return [usage] if usage else []


def _usage(answer: _Answer | None) -> Usage | None:
    if answer is None:
        return None
    decoded: dict[str, Any] = {}
    try:
        for name in _FIELDS:
            if (raw := getattr(answer, name)) is not _NULL:
                decoded[name] = _VALUE.decode(raw)
        decoded["choices"] = [
            _VALUE.decode(choice) for choice in answer.choices or () if _PROMPT_IDS in bytes(choice)
        ]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return read_usage(decoded)


def _parse(data: bytes) -> _Answer | None:
    try:
        return _ANSWER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None  # not for us to judge: the client gets it as it is


def _parse_event(event: bytes) -> _Answer | None:
    return _parse(event_data(event))
