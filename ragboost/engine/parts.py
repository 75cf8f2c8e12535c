"""Cut a prompt at its chunks: system prompt, chunks with what stands between them, question.

Knows texts, token ids and spans. Does not know the wire format or what is stored. Every part is
tokenised by itself, so that a chunk has the same ids wherever it stands.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Encode = Callable[[str], list[int]]


class TextSpan(NamedTuple):
    """Where a chunk stands, in characters of a text or in tokens."""

    start: int
    stop: int


class PromptPart(NamedTuple):
    """A chunk, or text between two chunks, which is always computed.

    Attributes:
        tokens: ids, at least one.
        is_chunk: whether its KV may be stored and reused.
    """

    tokens: tuple[int, ...]
    is_chunk: bool


class Parts(NamedTuple):
    """A prompt in parts.

    Attributes:
        system: ids before the first chunk: what stored chunks have been computed after.
        pieces: in the order of the prompt.
        question: ids behind the last chunk, at least one.
    """

    system: tuple[int, ...]
    pieces: tuple[PromptPart, ...]
    question: tuple[int, ...]

    @property
    def token_ids(self) -> list[int]:
        """The whole prompt."""
        return [
            *self.system,
            *(id_ for piece in self.pieces for id_ in piece.tokens),
            *self.question,
        ]

    @property
    def chunks(self) -> list[tuple[int, ...]]:
        """The chunks alone."""
        return [piece.tokens for piece in self.pieces if piece.is_chunk]


def cut_text(
    text: str,
    spans: Sequence[TextSpan],
    encode: Encode,
    *,
    system_end: int | None = None,
    encode_first: Encode | None = None,
) -> Parts:
    """Cut a text.

    White space behind a chunk belongs to it: it is the same wherever the chunk stands.

    Args:
        text: the prompt.
        spans: of the chunks, ascending, without overlaps.
        encode: a part's ids, without special tokens.
        system_end: where the system prompt ends, if not at the first chunk.
        encode_first: the same for the beginning of the prompt; None: `encode`.
    """
    ends = [*(span.start for span in spans), len(text)][1:]
    spans = [
        TextSpan(span.start, _after_space(text, span.stop, end))
        for span, end in zip(spans, ends, strict=True)
    ]
    first = spans[0].start if spans else 0
    at = first if system_end is None else min(system_end, first)
    system = (encode_first or encode)(text[:at])
    pieces = []
    for span in spans:
        pieces += _piece(encode(text[at : span.start]), is_chunk=False)
        pieces += _piece(encode(text[span.start : span.stop]), is_chunk=True)
        at = span.stop
    return _parts(system, pieces, encode(text[at:]))


def cut_tokens(tokens: Sequence[int], spans: Sequence[TextSpan]) -> Parts:
    """Cut a prompt of token ids, as it is."""
    at = spans[0].start if spans else 0
    system, pieces = list(tokens[:at]), []
    for span in spans:
        pieces += _piece(tokens[at : span.start], is_chunk=False)
        pieces += _piece(tokens[span.start : span.stop], is_chunk=True)
        at = span.stop
    return _parts(system, pieces, tokens[at:])


def find_in_messages(
    text: str, messages: Sequence[Mapping[str, Any]], spans: Mapping[int, Sequence[TextSpan]]
) -> list[TextSpan]:
    """Find chunks of messages in the rendered conversation. One that the template has changed is
    left out; a cut in a wrong place would do no harm but be of little use.

    Args:
        text: the rendered conversation.
        messages: with string contents.
        spans: of chunks, by number of the message.
    """
    found: list[TextSpan] = []
    cursor = 0
    for number, message in enumerate(messages):
        content = message["content"]
        at = text.find(content, cursor) if content else -1
        for start, stop in spans.get(number, ()):
            begin = at + start if at >= 0 else text.find(content[start:stop], cursor)
            if begin >= cursor and stop > start:
                found.append(TextSpan(begin, begin + stop - start))
                cursor = found[-1].stop
        cursor = max(cursor, at + len(content)) if at >= 0 else cursor
    return found


def find_documents(text: str, documents: Sequence[Mapping[str, Any]]) -> list[TextSpan]:
    """Find the documents that the chat template has rendered, each with its title where that stands
    directly before it."""
    found: list[TextSpan] = []
    cursor = 0
    for document in documents:
        body, title = document.get("text") or document.get("content"), document.get("title")
        if not isinstance(body, str) or (begin := text.find(body, cursor)) < 0:
            continue
        stop = begin + len(body)
        if isinstance(title, str) and title:
            before = text[cursor:begin].rstrip()
            begin = cursor + len(before) - len(title) if before.endswith(title) else begin
        found.append(TextSpan(begin, stop))
        cursor = stop
    return found


def _after_space(text: str, at: int, end: int) -> int:
    while at < end and text[at].isspace():
        at += 1
    return at


def _piece(tokens: Sequence[int], *, is_chunk: bool) -> list[PromptPart]:
    return [PromptPart(tuple(tokens), is_chunk)] if tokens else []


def _parts(system: Sequence[int], pieces: list[PromptPart], question: Sequence[int]) -> Parts:
    if not question and pieces:
        question = pieces.pop().tokens  # the last token has to be computed
    return Parts(tuple(system), tuple(pieces), tuple(question))
