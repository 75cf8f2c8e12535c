"""Read the usage and the assistant's messages of a response while it is relayed.

Knows completions as JSON and as server-sent events. Does not know sockets or sessions.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from ragboost.cache_sync.usage import Usage, merge_usage, read_usage

_MAX_BYTES = 8 * 1024 * 1024
_MAX_EVENT_BYTES = 4 * 1024 * 1024
_MAX_DEPTH = 32  # of a message's content and calls
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")
_DONE = b"data: [DONE]"
_USAGE_START = re.compile(rb'"usage"\s*:\s*\{')
_OURS_START = re.compile(rb'"ragboost"\s*:\s*\{')
# The events with which streams end, of Anthropic's messages and OpenAI's Responses.
_LAST_EVENTS = ("message_delta", "response.completed", "response.incomplete")
_DECODER = msgspec.json.Decoder()

AnswerMessage = dict[str, Any]
"""An assistant message as a client sends it back: `role`, `content`, `tool_calls`."""


class ResponseReader:
    """Reads one response: call `start` when its head has arrived, then `feed`, then `finish`.

    Args:
        strips_usage: remove a stream's usage event, which only the proxy has asked for.
        on_messages: called once, when the response is complete and before the client can know
            that it is, with the assistant's message of each choice: an empty list if the response
            is too long, an error, or of another shape. Not called for a truncated response.
        before_end: to be awaited by `settle`.
        write_receipt: returns the JSON object of a receipt for the usage that was read. It is
            added to the last event with usage of a stream whose client asked for usage.

    Attributes:
        usage: the usage read so far, or None.
        must_settle: `on_messages` was called: call `settle` before anything else is sent.
    """

    def __init__(
        self,
        *,
        strips_usage: bool = False,
        on_messages: Callable[[list[AnswerMessage]], None] | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
        write_receipt: Callable[[Usage], bytes] | None = None,
    ) -> None:
        self.usage: Usage | None = None
        self.must_settle = False
        self._strips_usage = strips_usage
        self._on_messages = on_messages
        self._before_end = before_end
        self._write_receipt = write_receipt
        self._edits = strips_usage or write_receipt is not None
        self._is_stream = False
        self._is_readable = True
        self._num_bytes = 0
        self._chunks: list[bytes] = []  # of a JSON body
        self._rest = b""  # of a stream: the beginning of the next event
        self._deltas: dict[int, _Deltas] = {}  # by index of the choice

    @property
    def reads_messages(self) -> bool:
        """The assistant's messages are still to be read."""
        return self._on_messages is not None

    @property
    def has_receipt(self) -> bool:
        """A receipt is to be written."""
        return self._write_receipt is not None

    def receipt(self) -> bytes | None:
        """Return the receipt of a complete response that is no stream; None without usage."""
        if self._is_stream or self.usage is None or self._write_receipt is None:
            return None
        return self._write_receipt(self.usage)

    def start(self, *, is_stream: bool) -> bool:
        """Begin a response; return True if the client may get other bytes than the backend sends.

        Args:
            is_stream: the body is server-sent events, not JSON.
        """
        self._is_stream = is_stream
        return is_stream and self._edits

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk of the body and return the bytes to send to the client now, maybe none."""
        self._num_bytes += len(chunk)
        if self._num_bytes > _MAX_BYTES:
            self._is_readable = False
        if self._is_stream:
            is_whole = not self._rest and chunk.endswith(b"\n\n")
            if is_whole and self._on_messages is None and b'"usage"' not in chunk:
                return chunk  # whole events, and nothing to read in them
            kept = [self._read_event(event) for event in self._split(chunk)]
            return b"".join(kept) if self._edits else chunk
        if self._is_readable:
            self._chunks.append(chunk)
        return chunk

    def finish(self) -> bytes:
        """End a complete response; return the bytes that were held back from the client."""
        if not self._is_stream:
            self._read_json()
            return b""
        self._rest = self._read_event(self._rest)
        self._complete([])
        return self.take_held()

    def take_held(self) -> bytes:
        """Return the bytes of an incomplete event that were held back from the client."""
        held, self._rest = self._rest, b""
        return held if self._edits else b""

    async def settle(self) -> None:
        """Wait until the end of the response may be sent.

        Raises:
            RequestError: it must not be sent.
        """
        assert self._before_end is not None, "nothing to wait for"
        self.must_settle = False
        await self._before_end()

    def _split(self, chunk: bytes) -> list[bytes]:
        """Return the events that are complete now, with their ends."""
        if not self._rest and chunk.find(b"\n\n") == len(chunk) - 2 >= 0:
            return [chunk]
        data, start = self._rest + chunk, 0
        searched = max(0, len(self._rest) - 3)  # the end has up to four bytes
        events: list[bytes] = []
        for end in _EVENT_END.finditer(data, searched):
            events.append(data[start : end.end()])
            start = end.end()
        self._rest = data[start:]
        if len(self._rest) > _MAX_EVENT_BYTES:
            self._is_readable = False
            events.append(self.take_held())
        elif self._rest.rstrip() == _DONE:  # a client may take the line for the end
            events, self._rest = [*events, self._rest], b""
        return events

    def _read_event(self, event: bytes) -> bytes:
        """Read one event and return it as the client gets it.

        Nothing of an event with usage that only the proxy asked for; others may get a receipt.
        """
        has_usage = b'"usage"' in event
        if not has_usage and self._on_messages is None:
            return event
        data = _data(event)
        answer = _decode(data)
        if answer is None:
            text = data.strip()
            if text == b"[DONE]":
                self._complete()
            elif text:
                self._is_readable = False
            return event
        if self._on_messages is not None and self._is_readable:
            self._read_deltas(answer)
        usage = read_usage(answer) if has_usage and isinstance(answer, dict) else None
        if usage is not None:
            self.usage = merge_usage([self.usage, usage])
            if self._strips_usage and answer.get("choices") == []:
                return b""
        return self._with_receipt(event, answer) if has_usage else event

    def _with_receipt(self, event: bytes, answer: Any) -> bytes:
        """Add the receipt to a stream's last event with usage; any other is returned as it is."""
        if self._write_receipt is None or self.usage is None or not _is_last(answer):
            return event
        receipt = self._write_receipt(self.usage)
        place, added = _USAGE_START.search(event), b'"ragboost":' + receipt
        if place is not None and (figures := _figures(answer)) is not None:
            # The embedded engine's figures of chunk reuse: ours are added to them.
            place = _OURS_START.search(event, place.end()) if figures else None
            added = receipt[1:-1]
        if place is None:
            return event
        rest = event[place.end() :]
        separator = b"" if rest.lstrip().startswith(b"}") else b","
        edited = event[: place.end()] + added + separator + rest
        written = _figures(_decode(_data(edited))) or {}
        return edited if _decode(receipt).items() <= written.items() else event

    def _read_deltas(self, answer: Any) -> None:
        if not isinstance(answer, dict) or "error" in answer:
            self._is_readable = False
            return
        for choice in _objects(answer.get("choices")):
            if isinstance(delta := choice.get("delta"), dict):
                index = choice.get("index")
                index = index if isinstance(index, int) else 0
                if index not in self._deltas:
                    self._deltas[index] = _Deltas()
                self._deltas[index].add(delta)

    def _read_json(self) -> None:
        answer = _decode(b"".join(self._chunks)) if self._is_readable else None
        messages: list[AnswerMessage] = []
        if isinstance(answer, dict):
            self.usage = read_usage(answer)
            choices = _objects(answer.get("choices")) if self._on_messages else ()
            found = _objects([choice.get("message") for choice in choices])
            messages = [_message(one.get("content"), one.get("tool_calls")) for one in found]
            if not _is_shallow(messages, _MAX_DEPTH):  # nobody could hash or store them
                messages = []
        self._complete(messages)

    def _complete(self, messages: list[AnswerMessage] | None = None) -> None:
        if self._on_messages is None:
            return
        self.must_settle = self._before_end is not None
        report, self._on_messages = self._on_messages, None
        if self._is_stream and self._is_readable:
            messages = [self._deltas[index].join() for index in sorted(self._deltas)]
        report(messages or [])


class _Deltas:
    """The pieces of one streamed message."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._calls: dict[int, dict[str, list[str]]] = {}  # by index, the pieces of each field

    def add(self, delta: dict[str, Any]) -> None:
        if isinstance(content := delta.get("content"), str):
            self._content.append(content)
        for call in _objects(delta.get("tool_calls")) if "tool_calls" in delta else ():
            index = call.get("index")
            index = index if isinstance(index, int) else len(self._calls)
            pieces = self._calls.setdefault(index, {"id": [""], "name": [], "arguments": []})
            if isinstance(name := call.get("id"), str) and name:
                pieces["id"] = [name]
            for function in _objects([call.get("function")]):
                for name in ("name", "arguments"):
                    if isinstance(piece := function.get(name), str):
                        pieces[name].append(piece)

    def join(self) -> AnswerMessage:
        calls = [
            {
                "id": pieces["id"][0],
                "type": "function",
                "function": {
                    name: "".join(pieces[name]) for name in ("name", "arguments") if pieces[name]
                },
            }
            for _, pieces in sorted(self._calls.items())
        ]
        return _message("".join(self._content) if self._content else None, calls)


def _message(content: Any, calls: Any) -> AnswerMessage:
    if calls:
        return {"role": "assistant", "content": content, "tool_calls": calls}
    return {"role": "assistant", "content": "" if content is None else content}


def _objects(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _is_shallow(value: Any, levels: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(_is_shallow(item, levels - 1) for item in value)


def _data(event: bytes) -> bytes:
    return b"\n".join([line[5:] for line in event.splitlines() if line.startswith(b"data:")])


def _figures(answer: Any) -> dict[str, Any] | None:
    """Return `usage.ragboost` of an event; None if there is none."""
    if isinstance(answer, dict) and isinstance(answer.get("response"), dict):
        answer = answer["response"]
    usage = answer.get("usage") if isinstance(answer, dict) else None
    figures = usage.get("ragboost") if isinstance(usage, dict) else None
    return figures if isinstance(figures, dict) else None


def _is_last(answer: Any) -> bool:
    if not isinstance(answer, dict):
        return False
    return answer.get("choices") == [] or answer.get("type") in _LAST_EVENTS


def _decode(data: bytes) -> Any:
    """Decode JSON; return None for whatever the decoder rejects, too deep a nesting included."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
