"""Write the client's numbers into the citations of an answer while it is relayed.

Bytes in which no number changes are relayed as they came. Whatever cannot be read is, too: an
answer is never lost for its citations.
"""

import logging
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ragboost.requests.formats.citations import CitationMap, CitationScanner, NumberEdit, replaced
from ragboost.requests.json_body import decode_json, decode_message, encode_json
from ragboost.requests.wires.answer_texts import (
    AnswerText,
    TextKey,
    assistant_texts,
    ended_texts,
    find_texts,
)
from ragboost.requests.wires.body import put

logger = logging.getLogger(__name__)

_MAX_BYTES = 2 * 1024 * 1024  # of a response, or of events, that are held
_MAX_TEXTS = 1024  # of one stream
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n")
_FAST = msgspec.json.Decoder()
_DONE = b"[DONE]"
_DATA = re.compile(rb"^data:[ ]?(.*?)(?=\r?$)", re.MULTILINE)


@dataclass(slots=True)
class _Event:
    """An event of a stream, or a whole body."""

    raw: bytes
    data: bytes = b""  # JSON, if there are texts in it
    texts: list[tuple[AnswerText, int]] = field(default_factory=list)  # with their offsets


class _Text:
    """A text of the answer with its replacements; offsets count from the prefix on."""

    def __init__(self, citations: CitationMap, prefix: str) -> None:
        self._scanner = CitationScanner(citations)
        self._scanner.feed(prefix)
        self._num_prefix = self._num_chars = len(prefix)
        self._edits: list[NumberEdit] = []

    def add(self, piece: str) -> int:
        """Add a piece; return its offset."""
        start, self._num_chars = self._num_chars, self._num_chars + len(piece)
        self._keep(self._scanner.feed(piece))
        return start

    def finish(self) -> None:
        self._keep(self._scanner.finish())

    def is_final(self, end: int) -> bool:
        return end <= self._scanner.released

    def take(self, piece: str, start: int) -> str:
        """Return a piece with its replacements; pieces are taken in their order."""
        mapped = replaced(piece, self._edits, start=start)
        self._edits = [edit for edit in self._edits if edit.end > start + len(piece)]
        return mapped

    def _keep(self, edits: list[NumberEdit]) -> None:
        self._edits += [edit for edit in edits if edit.start >= self._num_prefix]


class AnswerMapper:
    """Maps the citations of one answer: `start`, then `feed` each chunk, then `finish`.

    a stream  | relayed | held back: `_events` | `_incoming` | a part of an event: `_chunks` |

    Args:
        continued: the text of the request, as it is sent, that the answer continues.
    """

    def __init__(self, citations: CitationMap, *, continued: str = "") -> None:
        self._citations = citations
        self._prefix = continued
        self._is_stream = False
        self._is_off = False  # relay the rest as it comes
        self._chunks: list[bytes] = []  # of a body, or of the beginning of the next event
        self._held_bytes = 0  # of the chunks and events
        self._incoming: deque[bytes] = deque()
        self._events: deque[_Event] = deque()
        self._texts: dict[TextKey, _Text] = {}
        self._relayed: list[bytes] = []  # to return by the running call

    def start(self, *, is_stream: bool) -> None:
        self._is_stream = is_stream

    def feed(self, chunk: bytes) -> bytes:
        """Add a chunk of the body; return the bytes to relay now, maybe none."""
        if self._is_off:
            return chunk
        self._chunks.append(chunk)
        self._held_bytes += len(chunk)
        if self._is_stream and (b"\n" in chunk or chunk.endswith(_DONE)):
            self._run(self._read_events)
        if self._held_bytes > _MAX_BYTES or len(self._texts) > _MAX_TEXTS:
            self._turn_off()
        return self._take()

    def finish(self) -> bytes:
        """End the body, which may be incomplete; return what was held back."""
        if not self._is_off:
            self._run(self._end_texts if self._is_stream else self._read_body)
        self._turn_off()
        return self._take()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception:  # the answer is worth more than its citations
            logger.exception("citations of an answer are not mapped")
            self._turn_off()

    def _take(self) -> bytes:
        relayed, self._relayed = self._relayed, []
        return relayed[0] if len(relayed) == 1 else b"".join(relayed)

    def _turn_off(self) -> None:
        held = [event.raw for event in self._events]
        self._relayed += [*held, *self._incoming, *self._chunks]
        self._events.clear()
        self._incoming.clear()
        self._chunks, self._is_off = [], True

    def _read_body(self) -> None:
        raw = b"".join(self._chunks)
        texts = [(text, 0) for text in find_texts(_decode(raw))]
        self._relayed.append(self._mapped(_Event(raw, raw, texts)))
        self._chunks = []

    def _read_events(self) -> None:
        data, start = b"".join(self._chunks), 0
        for end in _EVENT_END.finditer(data):
            self._incoming.append(data[start : end.end()])
            start = end.end()
        rest = data[start:]
        if rest.strip() == b"data: " + _DONE:  # a client may take the line for the end
            self._incoming.append(rest)
            rest = b""
        self._chunks = [rest]
        while self._incoming:
            self._events.append(self._event(self._incoming[0]))
            self._incoming.popleft()
            self._release()

    def _event(self, raw: bytes) -> _Event:
        event, data = _Event(raw), _DATA.findall(raw)
        if [line.strip() for line in data] == [_DONE]:
            for text in self._texts.values():
                text.finish()
        elif len(data) == 1:
            event.data = data[0]
            answer = _decode(event.data)
            texts = find_texts(answer, is_stream=True)
            event.texts = [(text, self._offset(text)) for text in texts]
            for key in ended_texts(answer):
                if key in self._texts:
                    self._texts[key].finish()
        return event

    def _offset(self, text: AnswerText) -> int:
        if text.key is None:
            return 0
        if text.key not in self._texts:
            self._texts[text.key] = self._new_text()
        return self._texts[text.key].add(text.text)

    def _new_text(self) -> _Text:
        return _Text(self._citations, self._prefix)

    def _end_texts(self) -> None:
        for text in self._texts.values():
            text.finish()
        self._release()

    def _release(self) -> None:
        while self._events and all(map(self._is_final, self._events[0].texts)):
            event = self._events[0]
            mapped = self._mapped(event)
            self._events.popleft()
            self._held_bytes -= len(event.raw)
            self._relayed.append(mapped)

    def _is_final(self, place: tuple[AnswerText, int]) -> bool:
        text, start = place
        return text.key is None or self._texts[text.key].is_final(start + len(text.text))

    def _mapped(self, event: _Event) -> bytes:
        """Return an event or a whole body with the client's numbers."""
        mapped = [(text, self._taken(text, start)) for text, start in event.texts]
        changed = [(text.path, new) for text, new in mapped if new != text.text]
        if not changed:
            return event.raw
        answer, copies = decode_json(event.data), dict[int, Any]()  # with its numbers as written
        for path, new in changed:
            answer = put(answer, path, new, copies=copies)
        encoded = encode_json(answer)
        return _DATA.sub(lambda _: b"data: " + encoded, event.raw) if self._is_stream else encoded

    def _taken(self, text: AnswerText, start: int) -> str:
        if text.key is not None:
            return self._texts[text.key].take(text.text, start)
        whole = self._new_text()
        start = whole.add(text.text)
        whole.finish()
        return whole.take(text.text, start)


def _decode(data: bytes) -> Any:
    try:
        return _FAST.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return decode_json(data)


def continued_text(request: Mapping[str, Any], *, continues: bool = False) -> str:
    """Return the text that an answer continues; empty if it begins anew.

    Args:
        continues: an assistant's message at the end is the beginning of the answer, as in the
            Messages API, also unless the request says so.
    """
    if isinstance(prompt := request.get("prompt"), str):
        return prompt.rpartition("\n")[2]
    messages = request.get("messages")
    continues = continues or bool(request.get("continue_final_message"))
    if not (continues and isinstance(messages, list) and messages):
        return ""
    texts = assistant_texts(decode_message(messages[-1]), ())
    return texts[-1].text if texts else ""
