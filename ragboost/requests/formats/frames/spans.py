"""Scan helpers for texts, all in linear time."""

import re
from collections.abc import Iterable, Iterator, Sized
from typing import NamedTuple

from ragboost.requests.formats.documents import TooManyDocumentsError

_MAX_CLOSING_TAG = 64
MAX_DOCUMENTS = 100_000  # the greatest value of `formats.max_documents`


class LineMatch(NamedTuple):
    """A match of an expression at the beginning of a line."""

    start: int
    end: int
    match: re.Match[str]  # offsets are those of the text behind a line end


def lines(
    text: str, pattern: re.Pattern[str], gaps: Iterable[tuple[int, int]] | None = None
) -> Iterator[LineMatch]:
    """Yield the lines at whose beginning an expression matches; it begins with a line end.

    A fixed first character is many times faster than `^`.

    Args:
        gaps: the stretches to search; None: the whole text.
    """
    behind_line_end = "\n" + text
    for start, end in ((0, len(text)),) if gaps is None else gaps:
        for match in pattern.finditer(behind_line_end, start, end + 1):
            yield LineMatch(match.start(), match.end() - 1, match)


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
