"""Read the usage and the assistant's messages of a response while it is relayed."""

import re
from codecs import BOM_UTF8
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ragboost.proxy.upstream.mapped_answer import AnswerMapper
from ragboost.requests.json_body import decode_json
from ragboost.requests.wires.chat_answers import AnswerDeltas, AnswerMessage, read_answers
from ragboost.requests.wires.normal_form import is_empty
from ragboost.requests.wires.registry import ANY
from ragboost.requests.wires.usage import (
    OURS_START,
    USAGE_START,
    Usage,
    has_usage,
    is_last_event,
    is_usage_event,
    merge_usage,
    our_figures,
    read_usage,
)

_MAX_BYTES = 8 * 1024 * 1024
_MAX_EVENT_BYTES = 4 * 1024 * 1024
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")
_DONE = b"data: [DONE]"
_DECODER = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What a usage event consists of.
_USAGE_EVENT = frozenset(
    [
        *("choices", "created", "id", "model", "object"),
        *("obfuscation", "service_tier", "system_fingerprint", *ANY.usage),
    ]
)


class ResponseReader:
    """Reads one response: call `start` when its head has arrived, then `feed`, then `finish`.

    `on_messages` is called once, when the response is complete and before the client can know that
    it is, with the assistant's message of each choice: an empty list if the response is too long,
    an error, or of another shape. `settle` then awaits `before_end`. `write_receipt` returns a
    receipt's JSON object, added to the last event with usage of a stream whose client asked for
    usage. `mapper` maps the citations before anything else is read.
    """

    def __init__(
        self,
        *,
        mapper: AnswerMapper | None = None,
        strips_usage: bool = False,
        on_messages: Callable[[list[AnswerMessage]], None] | None = None,
        before_end: Callable[[], Awaitable[None]] | None = None,
        write_receipt: Callable[[Usage], bytes] | None = None,
    ) -> None:
        self.usage: Usage | None = None  # read so far
        self.tap: Callable[[bytes], None] | None = None  # gets the bytes as the backend sent them
        self.must_settle = False  # `on_messages` was called: await `settle` before sending more
        self._mapper = mapper
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
        self._deltas = AnswerDeltas() if on_messages is not None else None

    @property
    def has_receipt(self) -> bool:
        return self._write_receipt is not None

    def receipt(self) -> bytes | None:
        """Return the receipt of a complete response that is no stream; None without usage."""
        if self._is_stream or self.usage is None or self._write_receipt is None:
            return None
        return self._write_receipt(self.usage)

    def start(self, *, is_stream: bool) -> bool:
        """Begin a response; return True if the client may get other bytes than were sent."""
        self._is_stream = is_stream
        if self._mapper is not None:
            self._mapper.start(is_stream=is_stream)
        return self._mapper is not None or (is_stream and self._edits)

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk of the body and return the bytes to send to the client now, maybe none."""
        if self.tap is not None:
            self.tap(chunk)
        return self._read(chunk if self._mapper is None else self._mapper.feed(chunk))

    def _read(self, chunk: bytes) -> bytes:
        self._num_bytes += len(chunk)
        if self._num_bytes > _MAX_BYTES:
            self._is_readable, self._chunks = False, []
        if self._is_stream:
            is_whole = not self._rest and chunk.endswith(b"\n\n")
            if is_whole and self._on_messages is None and not has_usage(chunk):
                return chunk  # whole events, and nothing to read in them
            kept = [self._read_event(event) for event in self._split(chunk)]
            return b"".join(kept) if self._edits else chunk
        if self._is_readable:
            self._chunks.append(chunk)
        return chunk

    def finish(self) -> bytes:
        """End a complete response; return the bytes that were held back from the client."""
        held = self._take_unmapped()
        if not self._is_stream:
            self._read_json()
            return held
        self._rest = self._read_event(self._rest)
        self._complete([])
        return held + self._take_rest()

    def take_held(self) -> bytes:
        """Return the bytes of an incomplete response that were held back from the client."""
        return self._take_unmapped() + self._take_rest()

    def _take_unmapped(self) -> bytes:
        return b"" if self._mapper is None else self._read(self._mapper.finish())

    def _take_rest(self) -> bytes:
        held, self._rest = self._rest, b""
        return held if self._edits else b""

    async def settle(self) -> None:
        """Wait until the end may be sent; raise the RequestError of one that must not."""
        assert self._before_end is not None, "nothing to wait for"
        self.must_settle = False
        await self._before_end()

    def _split(self, chunk: bytes) -> list[bytes]:
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
            events.append(self._take_rest())
        elif self._rest.rstrip() == _DONE:  # a client may take the line for the end
            events, self._rest = [*events, self._rest], b""
        return events

    def _read_event(self, event: bytes) -> bytes:
        """Read one event and return it for the client: empty if only the proxy asked for it."""
        may_have_usage = has_usage(event)
        if not may_have_usage and self._on_messages is None:
            return event
        data = _data(event)
        answer = _decode(data) if self._deltas is None else decode_json(data)
        if answer is None:
            text = data.strip()
            if text == b"[DONE]":
                self._complete()
            elif text:
                self._is_readable = False
            return event
        if self._deltas is not None and self._is_readable:
            self._is_readable = self._deltas.add(answer)
        usage = read_usage(answer) if may_have_usage and isinstance(answer, dict) else None
        if usage is not None:
            self.usage = merge_usage(self.usage, usage)
            if self._strips_usage and is_usage_event(answer):
                return _without_usage(event, data, answer)
        return self._with_receipt(event, answer) if may_have_usage else event

    def _with_receipt(self, event: bytes, answer: Any) -> bytes:
        """Add the receipt to a stream's last event with usage; any other is returned as it is."""
        if self._write_receipt is None or self.usage is None or not is_last_event(answer):
            return event
        receipt = self._write_receipt(self.usage)
        place, added = USAGE_START.search(event), b'"ragboost":' + receipt
        if place is not None and (figures := our_figures(answer)) is not None:
            # The embedded engine's figures of chunk reuse: ours are added to them.
            place = OURS_START.search(event, place.end()) if figures else None
            added = receipt[1:-1]
        if place is None:
            return event
        rest = event[place.end() :]
        separator = b"" if rest.lstrip().startswith(b"}") else b","
        edited = event[: place.end()] + added + separator + rest
        written = our_figures(_decode(_data(edited))) or {}
        return edited if _decode(receipt).items() <= written.items() else event

    def _read_json(self) -> None:
        answer = None
        if self._is_readable:
            decode = _decode if self._on_messages is None else decode_json
            answer = decode(b"".join(self._chunks))
        messages: list[AnswerMessage] = []
        if isinstance(answer, dict):
            self.usage = read_usage(answer)
            messages = read_answers(answer) if self._on_messages else []
        self._complete(messages)

    def _complete(self, messages: list[AnswerMessage] | None = None) -> None:
        if self._on_messages is None:
            return
        self.must_settle = self._before_end is not None
        report, self._on_messages = self._on_messages, None
        if self._is_stream and self._is_readable and self._deltas is not None:
            messages = self._deltas.join()
        report(messages or [])


def _data(event: bytes) -> bytes:
    lines = event.removeprefix(BOM_UTF8).splitlines()
    return b"\n".join([line[5:] for line in lines if line.startswith(b"data:")])


def _without_usage(event: bytes, data: bytes, answer: Mapping[str, Any]) -> bytes:
    """Return a usage event with what else the backend says in it; empty if that is nothing."""
    if all(is_empty(value) for name, value in answer.items() if name not in _USAGE_EVENT):
        return b""
    try:
        fields = _FIELDS.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return event
    kept = {name: value for name, value in fields.items() if name not in ANY.usage}
    end = event[len(event.rstrip()) :] or b"\n\n"
    return b"data: " + msgspec.json.encode(kept) + end


def _decode(data: bytes) -> Any:
    """Decode JSON; return None for whatever the decoder rejects, too deep a nesting included."""
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
