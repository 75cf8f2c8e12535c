"""Siblings: marks that pair up into elements, and elements that one separator joins.

A parse is certain only if every mark of the frame has its place in it. A mark that has none, such
as a closing tag that a document quotes, leaves the whole list alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

from ragboost.requests.formats.documents import TooManyDocumentsError
from ragboost.requests.formats.frames.spans import MAX_DOCUMENTS

MAX_TAG = 1024
_MAX_NAMES = 64  # tags of one text that are looked at
_TAG = re.compile(r"<(/?)([^\W\d][\w.:-]{0,63})(?:>|(?=\s))")
_QUOTE_OR_END = re.compile("=[ \t]*([\"'])|>")
CLOSER = re.compile(r"\s*</([^\W\d][\w.:-]{0,63})>")
_MAX_SEPARATOR = 80
_MAX_EXAMPLE = 16  # characters of an element in a sentence that shows one
_BEFORE_NAMED = frozenset(" \t(/")  # stands before a mark that a sentence names
_QUOTES = frozenset("`'\"“”‘’")
_BRACKETS = frozenset(("(", "（", "「", "『"))
_GAP = frozenset(("", "\n", "\r", "\t", " ", "<"))  # follows an element, not a sentence's tag
_MAX_ATTRIBUTES = 100


Mark = tuple[int, int, bool]
"""Start and end of a mark, and True for a closer. The `>` behind attributes is found later."""


class Element(NamedTuple):
    """From the opener to behind the closer, with the content between them."""

    start: int
    end: int
    inner_start: int
    inner_end: int


Tags = Mapping[str, Sequence[Mark]]
"""The tags of each name that is closed somewhere, in the order of the text."""


class OddMarkError(Exception):
    """A mark has no place in the parse."""


def pair(text: str, marks: Sequence[Mark]) -> list[Element]:
    """Pair openers and closers, none of them in quotes, into the outermost elements.

    Before the first element, marks in a sentence are text: an instruction may name them or show an
    example that is not closed. A closer behind a text belongs to an element that begins nowhere.

    Raises:
        OddMarkError: an opener without a closer, or a closer without an opener.
    """
    spans: list[Element] = []
    depth, opener, inner_start, named, is_torn = 0, 0, 0, -1, False
    for at, (start, end, is_closer) in enumerate(marks):
        if not is_closer:
            if depth == 0:
                if not _begins(text, marks, at):
                    named = end
                    continue
                opener, inner_start = start, end
            depth += 1
        elif depth:
            depth -= 1
            if depth == 0:
                spans.append(Element(opener, end, inner_start, start))
        elif not spans and named >= 0 and text.find("\n", named, start) < 0:
            named = -1  # an example in one line
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
    line = text[max(0, start - 100) : start].rpartition("\n")[2]
    if not (line := line.rstrip()) or line.endswith(">"):
        return True
    close, _, is_closer = marks[at + 1] if at + 1 < len(marks) else (0, 0, False)
    if not is_closer:
        return False
    inner = text[end:close]
    if text[end - 1] != ">" and ">" in inner:  # behind the attributes
        inner = inner.partition(">")[2]
    is_named = inner.startswith(" ") and "\n" in inner  # as in "inside a <doc> tag"
    return len(inner.strip()) > _MAX_EXAMPLE and not is_named


def is_quoted(text: str, start: int, end: int) -> bool:
    """Return True for a mark in quotes or backticks, which is text."""
    return start > 0 and text[start - 1] in _QUOTES and text[end : end + 1] in _QUOTES


def _are_named(text: str, opener: Mark, close: int, end: int, is_lined: bool) -> bool:
    """Return True for an opening and a closing tag that a sentence names with nothing to read
    between them, as in "what stands in <doc></doc> is true".

    The opening one might end a document, and the closing one be the frame's: not in quotes, nor
    behind a word and before more text on the line.

    Args:
        is_lined: the earlier closing ones begin a line, so that this one is not the frame's.
    """
    start, inner_start, _ = opener
    inner = text[inner_start:close]
    if close - inner_start > _MAX_ATTRIBUTES or "\n" in inner:
        return False
    if text[inner_start - 1] != ">":
        inner = inner.partition(">")[2]
    if len(inner) > _MAX_EXAMPLE:
        return False
    if is_quoted(text, start, end):
        return True
    if any(map(str.isalnum, inner)) and not inner[0] == " " == inner[-1]:
        return False
    before = text[max(0, start - 2) : start].rstrip(" ")[-1:]
    behind = text[end : end + 2].lstrip(" ")[:1]
    if before.isalnum() or before in _BRACKETS:
        return is_lined or behind not in _GAP
    return is_lined and behind.isalnum()


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


def breaks_count(values: Sequence[str]) -> bool:
    """Return True for numbers from 0 or 1 on of which most, but not all, are without a gap."""
    for first in (0, 1):
        following = first
        for value in values:
            following += value == str(following)
        num = following - first
        if num < len(values) and num > 1 and 3 * num >= 2 * len(values):
            return True
    return False


def is_count(values: Sequence[str]) -> bool:
    """Return True for the numbers from 0 or 1 on without a gap, as texts."""
    return any(values == [str(first + at) for at in range(len(values))] for first in (0, 1))


def find_tags(text: str) -> Tags:
    """Find the tags of a text, without those in quotes or backticks and those that a sentence
    names; of one with very many names, those of the first."""
    marks: dict[str, list[Mark]] = {}
    closed: dict[str, bool] = {}  # True: behind line ends only
    num, start = 0, text.find("<")
    while start >= 0:  # `find` is many times faster than the expression's own search
        if match := _TAG.match(text, start):
            end, num = match.end(), num + 1
            slash, name = match.groups()
            if start and text[start - 1] in _QUOTES and is_quoted(text, start, end):
                pass
            elif not slash:
                marks.setdefault(name, []).append((start, end, False))
            elif text[end - 1] == ">":
                same = marks.setdefault(name, [])
                is_lined = closed.get(name, False)
                if same and not same[-1][2] and _are_named(text, same[-1], start, end, is_lined):
                    same.pop()
                else:
                    is_empty = bool(same) and same[-1][1] == start
                    begins_line = text[start - 1 : start] == "\n"
                    closed[name] = closed.get(name, True) and (is_empty or begins_line)
                    same.append((start, end, True))
            if num > MAX_DOCUMENTS:
                raise TooManyDocumentsError(num, MAX_DOCUMENTS)
        start = text.find("<", start + 1)
    return {name: marks[name] for name in list(closed)[:_MAX_NAMES]}


def _wrappers(text: str, tags: Tags) -> Iterator[Element]:
    """Yield the elements that occur once, on lines of their own: they enclose a list. A sentence
    behind one may name its opening tag."""
    for marks in tags.values():
        closers = [m for m in marks if m[2]]
        openers = [m for m in marks if not m[2] and m < closers[-1]] if closers else []
        begin = next((m for m in openers if text[m[0] - 1 : m[0]] in ("", "\n")), None)
        if begin is None or openers[-1] != begin or (len(closers) > 1 and closers[-2] > begin):
            continue
        inner_start = begin[1] if text[begin[1] - 1] == ">" else tag_end(text, begin[1])
        end = closers[-1]
        if 0 < inner_start < end[0] and text[end[0] - 1] == "\n":
            yield Element(begin[0], end[1], inner_start, end[0] - 1)


class Wrappers:
    """The elements that enclose lists, found once for a text, where a list needs them."""

    def __init__(self, text: str, tags: Tags) -> None:
        self._of = text, tags

    @cached_property
    def found(self) -> list[Element]:
        return list(_wrappers(*self._of))


def tag_end(text: str, at: int) -> int:
    """Return the offset after a start tag's `>`, skipping quoted values; -1 if it has none."""
    limit = min(len(text), at + MAX_TAG)
    while (match := _QUOTE_OR_END.search(text, at, limit)) is not None:
        if match[0] == ">":
            return match.end()
        at = text.find(match[1], match.end(), limit) + 1
        if not at:
            break
    return -1


def depths_of(marks: Sequence[Mark]) -> list[int]:
    """Return the openers less the closers before each mark, and at the end."""
    return [*accumulate([-1 if is_closer else 1 for _, _, is_closer in marks], initial=0)]
