"""Siblings: marks that pair up into elements, and elements that one separator joins.

A parse is certain only if every mark of the frame has its place in it. A mark that has none, such
as a closing tag that a document quotes, leaves the whole list alone.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_MAX_SEPARATOR = 80
_MAX_EXAMPLE = 16  # characters of an element in a sentence that shows one
_BEFORE_NAMED = frozenset(" \t(/")  # stands before a mark that a sentence names
_QUOTES = frozenset("`'\"“”‘’")


Mark = tuple[int, int, bool]
"""Start and end of a mark, and True for a closer. The `>` behind attributes is found later."""


class Element(NamedTuple):
    """From the opener to behind the closer, with the content between them."""

    start: int
    end: int
    inner_start: int
    inner_end: int


class OddMarkError(Exception):
    """A mark has no place in the parse."""


def pair(text: str, marks: Sequence[Mark]) -> list[Element]:
    """Pair openers and closers into the outermost elements.

    Marks in quotes or backticks are text. Before the first element, so are marks in a sentence: an
    instruction may name them or show an example that is not closed. A closer behind a text belongs
    to an element that begins nowhere.

    Raises:
        OddMarkError: an opener without a closer, or a closer without an opener.
    """
    spans: list[Element] = []
    depth, opener, inner_start, num_named, is_torn = 0, 0, 0, 0, False
    for at, (start, end, is_closer) in enumerate(marks):
        if start and text[start - 1] in _QUOTES and text[end : end + 1] in _QUOTES:
            continue
        if not is_closer:
            if depth == 0:
                if not _begins(text, marks, at):
                    num_named += 1
                    continue
                opener, inner_start = start, end
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                spans.append(Element(opener, end, inner_start, start))
        elif num_named and not spans:
            num_named -= 1
        elif spans or text[start - 1 : start] not in _BEFORE_NAMED:
            is_torn = True
    if is_torn and spans:
        raise OddMarkError("a closing mark without an opening one")
    if depth:
        raise OddMarkError("an opening mark without a closing one")
    return spans


def _begins(text: str, marks: Sequence[Mark], at: int) -> bool:
    """Return True for an opener that begins a line or follows a mark, or that is closed at once
    behind more than an example, as in "between <doc> and </doc>"."""
    start, end, _ = marks[at]
    if text[start - 1 : start] in ("", "\n", ">"):
        return True
    line = text[max(0, text.rfind("\n", 0, start) + 1, start - 100) : start]
    if not (line := line.rstrip()) or line.endswith(">"):
        return True
    close, _, is_closer = marks[at + 1] if at + 1 < len(marks) else (0, 0, False)
    if not is_closer:
        return False
    inner = text[end:close]
    if text[end - 1] != ">" and ">" in inner:  # behind the attributes
        inner = inner.partition(">")[2]
    return len(inner.strip()) > _MAX_EXAMPLE


def separators(text: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [text[a[1] : b[0]] for a, b in pairwise(spans)]


def is_separator(text: str) -> bool:
    return len(text) <= _MAX_SEPARATOR and not any(map(str.isalnum, text))


def common_separator(gaps: Sequence[str]) -> str:
    """Return the white space that all gaps end with; a document may end with more of it."""
    shortest = min(gaps, key=len)
    while shortest and not all(gap.endswith(shortest) for gap in gaps):
        shortest = shortest[1:]
    return shortest
