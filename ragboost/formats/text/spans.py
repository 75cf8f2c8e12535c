"""Scan helpers for texts, all in linear time."""

import re
from bisect import bisect
from collections.abc import Iterator, Sequence, Sized
from typing import Protocol, TypeVar

from ragboost.formats.documents import TooManyDocumentsError

_MAX_CLOSING_TAG = 64
MAX_DOCUMENTS = 100_000  # the greatest value of `formats.max_documents`
_FENCE = "```"
_CLOSING_TAG = re.compile("</([A-Za-z_]{1,64})>")


class Spanned(Protocol):
    """A part of a text, from `start` up to but not including `end`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


T = TypeVar("T", bound=Spanned)


def check_number(found: Sized) -> None:
    """Stop the search of a text that has absurdly many documents, before they fill the memory.

    Raises:
        TooManyDocumentsError: there are more than any setting allows.
    """
    if len(found) > MAX_DOCUMENTS:
        raise TooManyDocumentsError(len(found), MAX_DOCUMENTS)


def strip(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a part of a text without white space at both ends."""
    while start < end and text[start].isspace():
        start += 1
    while start < end and text[end - 1].isspace():
        end -= 1
    return start, end


def code_fences(text: str) -> list[int]:
    return list(finds(text, _FENCE, 0, len(text))) if _FENCE[0] in text else []


def is_in_code(fences: Sequence[int], at: int) -> bool:
    """Return True after an odd number of code fences."""
    return bisect(fences, at) % 2 == 1


def finds(text: str, needle: str, start: int, end: int) -> Iterator[int]:
    """Yield the offsets of `needle` between two offsets, not overlapping."""
    at = text.find(needle, start, end)
    while at >= 0:
        yield at
        at = text.find(needle, at + len(needle), end)


def runs(text: str, elements: Sequence[T]) -> Iterator[list[T]]:
    """Yield runs of two or more elements that only white space separates."""
    run: list[T] = []
    end = 0
    for element in elements:
        between = text[end : element.start] if run else ""
        if between and not between.isspace():
            if len(run) > 1:
                yield run
            run = []
        run.append(element)
        end = element.end
    if len(run) > 1:
        yield run


def behind_closing_tag(text: str, end: int) -> int:
    """Return the offset after a closing tag that follows at `end`, else `end`."""
    start = end
    while start < len(text) and text[start].isspace():
        start += 1
    if text.startswith("</", start):
        close = text.find(">", start, start + _MAX_CLOSING_TAG)
        if close >= 0:
            return close + 1
    return end


def line_starts(text: str, prefix: str, start: int, end: int) -> Iterator[int]:
    """Yield the offsets of lines that begin with `prefix`; a line begins at `start`, too."""
    if text.startswith(prefix, start, end):
        yield start
    for at in finds(text, "\n" + prefix, start, end):
        yield at + 1


def closing_tags(text: str) -> set[str]:
    return set(_CLOSING_TAG.findall(text)) if "<" in text else set()
