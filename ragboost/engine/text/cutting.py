"""Cut a prompt at its chunks: system prompt, chunks with the text between them, question.

Knows texts, token ids and spans. Does not know the wire format or what is stored. Every part is
tokenised by itself, so that a chunk has the same ids wherever it is.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.engine.runtime.prompt import CutPrompt, PromptPart

Encode = Callable[[str], list[int]]


class TextSpan(NamedTuple):
    """Position of a chunk, in characters of a text or in tokens of a prompt."""

    start: int
    stop: int


def cut_text(
    text: str,
    spans: Sequence[TextSpan],
    encode: Encode,
    *,
    system_end: int | None = None,
    encode_first: Encode | None = None,
) -> CutPrompt:
    """Cut a text at its chunks.

    White space after a chunk becomes part of it, because it is the same wherever the chunk is.

    Args:
        text: the prompt.
        spans: of the chunks, ascending, without overlaps.
        encode: returns the ids of a part, without special tokens.
        system_end: end of the system prompt, if before the first chunk.
        encode_first: used instead of `encode` for the beginning of the prompt.
    """
    ends = [*(span.start for span in spans), len(text)][1:]
    spans = [
        TextSpan(span.start, _skip_space(text, span.stop, end))
        for span, end in zip(spans, ends, strict=True)
    ]
    at = spans[0].start if spans else 0
    if system_end is not None:
        at = min(system_end, at)
    system, parts = (encode_first or encode)(text[:at]), []
    for span in spans:
        parts.append(PromptPart(tuple(encode(text[at : span.start])), False))
        parts.append(PromptPart(tuple(encode(text[span.start : span.stop])), True))
        at = span.stop
    return _cut_prompt(system, parts, encode(text[at:]))


def cut_tokens(tokens: Sequence[int], spans: Sequence[TextSpan]) -> CutPrompt:
    """Cut a prompt of token ids at its chunks."""
    at = spans[0].start if spans else 0
    system, parts = tokens[:at], []
    for span in spans:
        parts.append(PromptPart(tuple(tokens[at : span.start]), False))
        parts.append(PromptPart(tuple(tokens[span.start : span.stop]), True))
        at = span.stop
    return _cut_prompt(system, parts, tokens[at:])


def find_in_messages(
    text: str, messages: Sequence[Mapping[str, Any]], spans: Mapping[int, Sequence[TextSpan]]
) -> list[TextSpan]:
    """Find chunks of messages in the rendered conversation.

    Chunks that the template has changed are left out. A wrong cut would be harmless but useless.

    Args:
        text: the rendered conversation.
        messages: with string contents.
        spans: of chunks in the contents, by message number.
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
    """Find the documents in a rendered conversation, each with the title directly before it."""
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


def _skip_space(text: str, at: int, end: int) -> int:
    while at < end and text[at].isspace():
        at += 1
    return at


def _cut_prompt(
    system: Sequence[int], parts: Sequence[PromptPart], question: Sequence[int]
) -> CutPrompt:
    parts = [part for part in parts if part.tokens]
    if not question and parts:
        question = parts.pop().tokens  # the last token must be computed
    return CutPrompt(tuple(system), tuple(parts), tuple(question))
