"""Search results as JSON in a tool message: `[{"text": ...}, ...]` or `{"results": [...]}`.

Each result is an object with a text and keeps its other fields, in the tool's own spelling.
"""

import json
from typing import Any

from ragboost.formats.groups import DocumentBlock, TextGroup, hint_name, text_of
from ragboost.formats.text.spans import check_number
from ragboost.jsonl import json_value

_LISTS = ("results", "documents", "passages", "chunks", "hits", "matches")
_NAMES = ("title", "source", "url", "id")
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()


def find(text: str) -> list[TextGroup]:
    start = _skip(text, 0)
    is_object = text[start : start + 1] == "{"
    if is_object:
        start = _list_start(text)
    if start < 0 or text[start : start + 1] != "[":
        return []
    blocks, end = _elements(text, start)
    if not is_object and _skip(text, end) < len(text):
        return []
    return [TextGroup(text, tuple(blocks), len(text), is_json=True)] if len(blocks) > 1 else []


def _list_start(text: str) -> int:
    """Return the offset of an object's only list of results; -1 if there is none."""
    fields = json_value(text)
    names = [name for name in _LISTS if isinstance(fields, dict) and name in fields]
    if len(names) != 1 or text.count(f'"{names[0]}"') != 1:
        return -1
    key = f'"{names[0]}"'
    at = _skip(text, text.index(key) + len(key))
    return _skip(text, at + 1) if text[at : at + 1] == ":" else -1


def _elements(text: str, start: int) -> tuple[list[DocumentBlock], int]:
    """Return the results of the list at `start`, none if one lacks a text, and its end."""
    blocks: list[DocumentBlock] = []
    at = start
    while not blocks or text[at : at + 1] == ",":
        at = _skip(text, at + 1)
        try:
            value, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return [], start
        found = text_of(value)
        if found is None:
            return [], start
        blocks.append(_block(text, at, end, value, found))
        check_number(blocks)
        at = _skip(text, end)
    return (blocks, at + 1) if text[at : at + 1] == "]" else ([], start)


def _block(text: str, start: int, end: int, value: Any, found: tuple[str, str]) -> DocumentBlock:
    key, expected = f'"{found[0]}"', found[1]
    name = next(filter(None, [hint_name(value.get(each)) for each in _NAMES]), "")
    at = text.find(key, start, end)
    opening = _skip(text, at + len(key)) if at >= 0 else -1
    opening = _skip(text, opening + 1) if text[opening : opening + 1] == ":" else -1
    if opening >= 0 and text[opening : opening + 1] == '"':
        literal, closing = _DECODER.raw_decode(text, opening)
        if literal == expected:
            return DocumentBlock(start, end, expected, opening + 1, closing - 1, None, name)
    return DocumentBlock(start, end, None, 0, 0, None, name)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
