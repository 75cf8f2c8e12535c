"""Documents in XML tags: `<document index="1" source="a.pdf">...</document>`.

Attributes and inner tags stay with their document; Anthropic's form with `<source>` and
`<document_content>` is one of these. A run has at least two elements of one tag with nothing but
white space between them. Nested, unclosed or self-closing elements: the text is left alone.
"""

import re
from typing import NamedTuple

from ragboost.formats.groups import Block, Number, TextGroup
from ragboost.formats.spans import (
    behind_closing_tag,
    closing_tags,
    code_fences,
    finds,
    is_in_code,
    runs,
    strip,
)

TAGS = ("document", "doc", "passage", "chunk", "search_result", "Document")

_MAX_TAG = 1024
_MAX_NAME = 200
_BEHIND_NAME = " \t\r\n>"
_ATTRIBUTE = re.compile(r"""(?<![\w:.-])([\w:.-]++)=(?:"([^"]*+)"|'([^']*+)')""")
_QUOTE_OR_END = re.compile("[\"'>]")
_NUMBERS = ("index", "id", "number", "num", "n", "i")
_NAMES = ("title", "name", "source", "url", "path", "id", "doc_id")
_CONTENT = ("<document_content>", "</document_content>")


class _Attribute(NamedTuple):
    value: str
    start: int
    end: int


class _Element(NamedTuple):
    start: int
    end: int
    inner_start: int
    inner_end: int
    attributes: dict[str, _Attribute]


def find(text: str) -> list[TextGroup]:
    """Find runs of elements; of the tags that we know, the first that has any counts."""
    closed = closing_tags(text).intersection(TAGS)
    fences = code_fences(text) if closed else []
    for tag in TAGS:
        if tag not in closed:
            continue
        groups = [
            _group(text, run)
            for run in runs(text, _elements(text, tag))
            if not is_in_code(fences, run[0].start)
        ]
        if groups:
            return groups
    return []


def _elements(text: str, tag: str) -> list[_Element]:
    """All elements of a tag; none if they are not plainly one behind the other."""
    opener, closer = f"<{tag}", f"</{tag}>"
    elements: list[_Element] = []
    at = _find_opener(text, opener, 0, len(text))
    while at >= 0:
        inner = _tag_end(text, at)
        close = text.find(closer, inner) if inner >= 0 else -1
        if close < 0 or text[inner - 2] == "/" or _find_opener(text, opener, inner, close) >= 0:
            return []
        end = close + len(closer)
        attributes = _attributes(text, at + len(opener), inner)
        elements.append(_Element(at, end, inner, close, attributes))
        at = _find_opener(text, opener, end, len(text))
    return elements


def _find_opener(text: str, opener: str, start: int, end: int) -> int:
    """The next start tag of this very name: `<document_content>` is none of `<document>`."""
    for at in finds(text, opener, start, end):
        behind = at + len(opener)
        if text[behind : behind + 1] in _BEHIND_NAME:
            return at
    return -1


def _tag_end(text: str, at: int) -> int:
    """Offset behind a start tag's `>`, which may also stand in a quoted value; -1: no such tag."""
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


def _group(text: str, run: list[_Element]) -> TextGroup:
    number = _number_attribute(run)
    blocks = tuple(_block(text, element, number) for element in run)
    return TextGroup(text, blocks, behind_closing_tag(text, run[-1].end))


def _number_attribute(run: list[_Element]) -> str | None:
    """The attribute that counts the elements from 0 or 1, if there is one."""
    for name in _NUMBERS:
        values = [element.attributes[name].value for element in run if name in element.attributes]
        if len(values) == len(run) and any(
            values == [str(first + at) for at in range(len(run))] for first in (0, 1)
        ):
            return name
    return None


def _block(text: str, element: _Element, number: str | None) -> Block:
    start, end = strip(text, *_text_proper(text, element))
    counted = element.attributes[number] if number else None
    return Block(
        element.start,
        element.end,
        text[start:end] or None,
        start,
        end,
        Number(counted.start, counted.end, "document ", "") if counted else None,
        _name(text, element, number),
    )


def _text_proper(text: str, element: _Element) -> tuple[int, int]:
    opener, closer = _CONTENT
    start = text.find(opener, element.inner_start, element.inner_end)
    if start < 0:
        return element.inner_start, element.inner_end
    end = text.rfind(closer, start, element.inner_end)
    return (start + len(opener), end) if end >= 0 else (element.inner_start, element.inner_end)


def _name(text: str, element: _Element, number: str | None) -> str:
    for name in _NAMES:
        if name != number and name in element.attributes:
            return _quoted(element.attributes[name].value)
    start, _ = strip(text, element.inner_start, element.inner_end)
    for tag in ("source", "title"):
        if text.startswith(f"<{tag}>", start):
            end = text.find(f"</{tag}>", start, start + _MAX_NAME)
            return _quoted(text[start + len(tag) + 2 : end].strip()) if end >= 0 else ""
    return ""


def _quoted(name: str) -> str:
    return f'"{name}"' if name.strip() and len(name) <= _MAX_NAME and "\n" not in name else ""
