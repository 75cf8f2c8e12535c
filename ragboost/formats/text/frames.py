"""Frames around a list of documents that do not mark each one: LlamaIndex, LangChain, wrapper tags.

Knows where a frame begins and ends. Does not know how documents are marked inside it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ragboost.formats.text.spans import closing_tags, code_fences, finds, is_in_code, strip

WRAPPERS = (
    "context",
    "documents",
    "docs",
    "sources",
    "passages",
    "search_results",
    "retrieved_documents",
    "retrieved_context",
)
# Sentences that precede a line of dashes. LlamaIndex: question answering, tree summarize, context
# chat, citations. LangChain: the question-answering chat prompt.
_INTROS = (
    "context information is below",
    "context information from multiple sources is below",
    "context information below",
    "numbered sources of information",
    "pieces of context to answer",
)
_STUFF = "pieces of context to answer"
_STUFF_END = "\n\nQuestion:"
_INTRO_CHARS = 400


class Frame(NamedTuple):
    """The part of a text that a frame encloses, without white space at its ends."""

    start: int
    end: int
    close: int  # after the mark that ends the frame


def find_frames(text: str) -> Iterator[Frame]:
    frames = (*_between_dashes(text), *_wrapped(text), *_stuffed(text))
    fences = code_fences(text) if frames else []
    for frame in frames:
        start, end = strip(text, frame.start, frame.end)
        if start < end and not is_in_code(fences, start):
            yield Frame(start, end, frame.close)


def _between_dashes(text: str) -> Iterator[Frame]:
    at = text.find("\n-----")
    while at >= 0:
        end = at + 1
        while end < len(text) and text[end] == "-":
            end += 1
        dashes = text[at + 1 : end]
        intro = text[max(0, at - _INTRO_CHARS) : at].lower()
        if text.startswith("\n", end) and any(words in intro for words in _INTROS):
            frame = _closed_by(text, end, dashes)
            if frame is not None:
                yield frame
            return
        at = text.find("\n-----", end)


def _closed_by(text: str, start: int, dashes: str) -> Frame | None:
    lines = [
        at
        for at in finds(text, "\n" + dashes, start, len(text))
        if text[at + 1 + len(dashes) : at + 2 + len(dashes)] in ("", "\n", "\r")
    ]
    if not lines:
        return Frame(start, len(text), len(text))
    return Frame(start, lines[0], lines[0] + 1 + len(dashes)) if len(lines) == 1 else None


def _wrapped(text: str) -> Iterator[Frame]:
    closed = closing_tags(text).intersection(WRAPPERS)
    for name in WRAPPERS:
        if name not in closed:
            continue
        opener, closer = f"<{name}>", f"</{name}>"
        if text.count(opener) == 1 == text.count(closer):
            start, end = text.index(opener) + len(opener), text.index(closer)
            if start < end:
                yield Frame(start, end, end + len(closer))


def _stuffed(text: str) -> Iterator[Frame]:
    """Yield the frame of LangChain's classic prompt: an instruction, the context, "Question:"."""
    intro = text.find(_STUFF)
    start = text.find("\n\n", intro) if intro >= 0 else -1
    end = text.rfind(_STUFF_END)
    if 0 <= start < end:
        yield Frame(start, end, end)
