"""Documents in XML tags: `<document index="1" source="a.pdf">...</document>`.

Attributes and inner tags move with their document. A run has two or more elements of one tag that
only white space separates. Nested, unclosed and self-closing ones are left alone.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ragboost.formats.groups import DocumentBlock, Number, TextGroup, hint_name
from ragboost.formats.text.spans import (
    MAX_DOCUMENTS,
    behind_closing_tag,
    check_number,
    code_fences,
    is_in_code,
    runs,
    strip,
)

TAGS = ("document", "doc", "passage", "chunk", "search_result", "Document")

_MAX_TAG = 1024
_MAX_NAME = 200
_CHARACTERS_PER_MARK = 400  # where both searches take the same time
_FEW_MARKS = 32
# Start tags of exactly this name (`<document_content>` does not match `<document>`), end tags, and
# the tag that Anthropic writes around the text. Regular expressions that begin with a fixed
# character are the fastest search for such marks.
_MARKS = {tag: re.compile(f"<(?:/{tag}>|{tag}(?=[ \\t\\r\\n>])|document_content>)") for tag in TAGS}
_CLOSERS = re.compile(f"</({'|'.join(TAGS)})>")
_ATTRIBUTE = re.compile(r"""(?<![\w:.-])([\w:.-]++)=(?:"([^"]*+)"|'([^']*+)')""")
_QUOTE_OR_END = re.compile("[\"'>]")
_NUMBERS = ("index", "id", "number", "num", "n", "i")
_NAMES = ("title", "name", "source", "url", "path", "id", "doc_id")
_CONTENT_END = "</document_content>"


class _Attribute(NamedTuple):
    value: str
    start: int
    end: int


class _Element(NamedTuple):
    """An element with attributes or inner tags, or behind such a one, or an empty one."""

    start: int
    end: int
    inner_start: int
    inner_end: int
    content: int  # after the first `<document_content>`; -1 if there is none
    attributes: dict[str, _Attribute]


_Found = _Element | DocumentBlock  # a block at once for elements of nothing but text


def find(text: str) -> list[TextGroup]:
    for tag in _closed_tags(text):
        found = list(runs(text, _elements(text, tag)))
        fences = code_fences(text) if found else []
        groups = [_group(text, run) for run in found if not is_in_code(fences, run[0].start)]
        if groups:
            return groups
    return []


def _closed_tags(text: str) -> Iterator[str]:
    """Yield the known tags that are closed somewhere, in order of preference. A text that closes
    the preferred tag first is searched for others only if that one has no documents."""
    first = _CLOSERS.search(text)
    if first is None:
        return
    if is_first := first[1] == TAGS[0]:
        yield TAGS[0]
    closed = set(_CLOSERS.findall(text, first.start()))
    yield from (tag for tag in TAGS[is_first:] if tag in closed)


def _elements(text: str, tag: str) -> list[_Found]:
    """Return all elements of a tag; none if they nest or one of them is not closed."""
    elements: list[_Found] = []
    first = _MARKS[tag].search(text)
    at = first.start() if first else -1
    opener, closer = f"<{tag}>", f"</{tag}>"
    width, closer_width, find, starts = len(opener), len(closer), text.find, text.startswith
    while starts(opener, at):  # elements of nothing but text, up to the first other mark
        inner = at + width
        inner_end = find("<", inner)
        if inner_end <= inner or not starts(closer, inner_end):
            break
        padded, behind = text[inner:inner_end], inner_end + closer_width
        if (proper := padded.strip()) is not padded:
            inner = inner_end - len(padded.lstrip())
        elements.append(DocumentBlock(at, behind, proper or None, inner, inner + len(proper)))
        if len(elements) > MAX_DOCUMENTS:
            check_number(elements)
        if (at := find("<", behind)) < 0:
            break
    start = inner = content = -1  # of the element that is open
    for mark in _marks(text, tag, at):
        at, behind = mark.span()
        is_closer = text[at + 1] == "/"
        if not is_closer and text[behind - 1] == ">":
            if content < 0 and start >= 0 and at >= inner:
                content = behind
        elif start < 0:
            if is_closer:
                continue
            start, content = at, -1
            inner = behind + 1 if text[behind] == ">" else _tag_end(text, at)
            if inner < 0 or text[inner - 2] == "/":
                return []
        elif at >= inner:  # else it is part of an attribute
            if not is_closer:
                return []
            attributes = _attributes(text, start + 1 + len(tag), inner)
            elements.append(_Element(start, behind, inner, at, content, attributes))
            check_number(elements)
            start = -1
    return elements if start < 0 else []


def _marks(text: str, tag: str, at: int) -> Iterator[re.Match[str]]:
    """Yield the marks of a tag from a `<` on.

    While `<` is rare, `find` is many times faster than the regular expression's own search.
    """
    pattern, num, begin = _MARKS[tag], 0, at
    while at >= 0:
        num += 1
        if at - begin < (num - _FEW_MARKS) * _CHARACTERS_PER_MARK:
            yield from pattern.finditer(text, at)
            return
        if mark := pattern.match(text, at):
            yield mark
        at = text.find("<", at + 1)


def _tag_end(text: str, at: int) -> int:
    """Return the offset after a start tag's `>`, skipping quoted values; -1 if it has none."""
    limit = text.find("<", at + 1, at + _MAX_TAG)
    limit = min(len(text), at + _MAX_TAG) if limit < 0 else limit
    while (match := _QUOTE_OR_END.search(text, at, limit)) is not None:
        if match[0] == ">":
            return match.end()
        at = text.find(match[0], match.end(), limit) + 1
        if not at:
            break
    return -1


def _attributes(text: str, start: int, end: int) -> dict[str, _Attribute]:
    found: dict[str, _Attribute] = {}
    for match in _ATTRIBUTE.finditer(text, start, end):
        group = 2 if match[2] is not None else 3
        found.setdefault(match[1], _Attribute(match[group], *match.span(group)))
    return found


def _group(text: str, run: list[_Found]) -> TextGroup:
    if set(map(type, run)) == {DocumentBlock}:
        return TextGroup(text, tuple(run), behind_closing_tag(text, run[-1].end))  # type: ignore[arg-type]
    elements = [element for element in run if isinstance(element, _Element)]
    number = _number_attribute(elements) if len(elements) == len(run) else None
    blocks = tuple(
        [
            _block(text, element, number) if isinstance(element, _Element) else element
            for element in run
        ]
    )
    return TextGroup(text, blocks, behind_closing_tag(text, run[-1].end))


def _number_attribute(run: list[_Element]) -> str | None:
    """Return the attribute that counts the elements from 0 or 1; None if there is none."""
    if not run[0].attributes:
        return None
    for name in _NUMBERS:
        values = [element.attributes[name].value for element in run if name in element.attributes]
        if len(values) == len(run) and any(
            values == [str(first + at) for at in range(len(run))] for first in (0, 1)
        ):
            return name
    return None


def _block(text: str, element: _Element, number: str | None) -> DocumentBlock:
    inner, inner_end = element.inner_start, element.inner_end
    if inner == inner_end or text[inner].isspace() or text[inner_end - 1].isspace():
        inner, inner_end = strip(text, inner, inner_end)
    name = _name(text, element, number, inner) if element.attributes or text[inner] == "<" else ""
    start, end = (inner, inner_end) if element.content < 0 else _content(text, element)
    proper = text[start:end] or None
    if number is None:
        return DocumentBlock(element.start, element.end, proper, start, end, None, name)
    counted = element.attributes[number]
    place = Number(counted.start, counted.end, "document ", "")
    return DocumentBlock(element.start, element.end, proper, start, end, place, name)


def _content(text: str, element: _Element) -> tuple[int, int]:
    end = text.rfind(_CONTENT_END, element.content, element.inner_end)
    if end < 0:
        return strip(text, element.inner_start, element.inner_end)
    return strip(text, element.content, end)


def _name(text: str, element: _Element, number: str | None, start: int) -> str:
    for name in _NAMES:
        if name != number and name in element.attributes:
            return _quoted(element.attributes[name].value)
    return _tag_name(text, start)


def _tag_name(text: str, start: int) -> str:
    for tag in ("source", "title"):
        if text.startswith(f"<{tag}>", start):
            end = text.find(f"</{tag}>", start, start + _MAX_NAME)
            return _quoted(text[start + len(tag) + 2 : end].strip()) if end >= 0 else ""
    return ""


def _quoted(name: str) -> str:
    return "" if "\n" in name else hint_name(name)
