"""JSON and Python literals: `[{"text": ...}, ...]`, a JSON object a line, LangChain's repr.

What a literal contains is a string and nothing else: no mark inside it means anything.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ragboost.requests.formats.frames.candidate import Candidate, why_ordered
from ragboost.requests.formats.frames.not_documents import (
    MIN_CHARS,
    are_documents,
    is_record,
)
from ragboost.requests.formats.frames.siblings import is_count, is_separator, separators
from ragboost.requests.formats.frames.spans import check_number
from ragboost.requests.formats.groups import DocumentBlock, hint_name, text_of

_LISTS = ("results", "documents", "passages", "chunks", "hits", "matches", "sources", "context")
_TEXT = "text"  # the type and the name of a part of a result
_MAX_KEYS = 8  # places in an object at which its text is sought
_NAMES = ("title", "source", "sourceName", "name", "url", "path", "id")
_NUMBERS = ("index", "id", "number", "n")
_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()
_MAX_ATTEMPTS = 8  # literals of one text that may turn out to be none
_OTHER = re.compile(r"[^\W_](?![^<>]{0,100}>)")  # a word outside of tags
# A literal begins a line, or follows a name: `Context: [...]`.
_BEGIN = re.compile(
    r"\n(?:((?:[^\W\d_]{1,20}[ _]){0,2}[^\W\d_]{1,20})[ ]?[:：])?[ \t]*+[\[{](?=[\s\"\[{\]}])"
)
_LINE_END = re.compile(r"[ \t\r]*(?:\n|\Z)")
_REPR = re.compile(r"Document\((?=\w+=)")
# Python prints a line end in a string as \\n.
_REPR_PART = re.compile(r"""'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+"|[()\n]""")
_REPR_TEXT = re.compile(r"""page_content=('(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+")""")
_DIGITS = re.compile(r"""\s*:\s*"?(\d{1,9})(?="?\s*[,}])""")


class _Value(NamedTuple):
    start: int
    end: int
    value: Any


def find(text: str, *, is_tool: bool) -> Iterator[Candidate]:
    """Yield each literal, with blocks if it is a list of documents.

    Args:
        is_tool: the text is a tool's result: what begins like JSON is JSON, even if it is damaged.
    """
    yield from _reprs(text)
    if "{" not in text and "[" not in text:
        return
    at, num_failed, series = 0, {False: 0, True: 0}, list[_Value]()  # failed: by "has a name"
    lined = "\n" + text
    while num_failed[False] < _MAX_ATTEMPTS and (match := _BEGIN.search(lined, at)):
        start, is_named = match.end() - 2, match[1] is not None
        if num_failed[is_named] >= _MAX_ATTEMPTS:
            at = start + 1
            continue
        try:
            value, at = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            num_failed[is_named], at = num_failed[is_named] + 1, start + 1
            if is_tool and not text[:start].strip():
                yield Candidate(0, len(text), "json", problem="a JSON text that does not end")
                return
            continue
        if text.find('"', start, at) < 0:
            continue  # a number in brackets, perhaps a label: no string is in it
        if is_named:
            yield _named(text, match, _Value(start, at, value), is_tool=is_tool)
            continue
        if series and not is_separator(text[series[-1].end : start]):
            yield _of_series(text, series, is_tool=is_tool)
            series = []
        series.append(_Value(start, at, value))
        check_number(series)
    if series:
        yield _of_series(text, series, is_tool=is_tool)


def _of_series(text: str, series: list[_Value], *, is_tool: bool) -> Candidate:
    start, end = series[0].start, series[-1].end
    nothing = Candidate(start, end, "json")
    gaps = separators(text, [value[:2] for value in series])
    if is_tool and _has_words_outside(text, start, end):
        return nothing  # maybe a part of a document
    if len(series) > 1 and len(set(gaps)) == 1 and isinstance(series[0].value, dict):
        values = series
    elif len(series) == 1:
        values = _elements(text, series[0], is_tool=is_tool)
    else:
        return nothing
    blocks, order = _blocks(text, values, is_tool=is_tool)
    if len(blocks) < 2:
        return nothing._replace(order=order)
    close = len(text) if is_tool else end
    return Candidate(start, end, "json", blocks, close, is_json=True)


def _has_words_outside(text: str, start: int, end: int) -> bool:
    return bool(_OTHER.search(text, 0, start) or _OTHER.search(text, end))


def _named(text: str, name: re.Match[str], outer: _Value, *, is_tool: bool) -> Candidate:
    """Find the documents of a list behind its name, with nothing else on their last line."""
    nothing = Candidate(*outer[:2], "json")
    if is_tool and _has_words_outside(text, name.start(), outer.end):
        return nothing  # maybe a part of a document
    blocks, order = _blocks(text, _elements(text, outer, is_tool=False), is_tool=False)
    is_list = len(blocks) > 1 and _LINE_END.match(text, outer.end) is not None
    if is_list and are_documents(name[1], [block.text or "" for block in blocks]):
        return Candidate(*outer[:2], "json", blocks, outer.end, is_json=True)
    return nothing._replace(order=order)


def _elements(text: str, outer: _Value, *, is_tool: bool) -> list[_Value]:
    """Return the elements of a list, or of an object's only list of results, whatever its name if
    it is a tool's."""
    value, start = outer.value, outer.start
    if isinstance(value, dict):
        names = [name for name in _LISTS if isinstance(value.get(name), list)]
        if not names and is_tool:
            names = [name for name, each in value.items() if _are_results(each)]
        if len(names) != 1 or (start := _member(text, start, names[0])) < 0:
            return []
    if text[start : start + 1] != "[":
        return []
    elements: list[_Value] = []
    at = start
    while not elements or text[at : at + 1] == ",":
        at = _skip(text, at + 1)
        try:
            element, end = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        elements.append(_Value(at, end, element))
        check_number(elements)
        at = _skip(text, end)
    return elements if text[at : at + 1] == "]" else []


def _are_results(value: Any) -> bool:
    return isinstance(value, list) and len(value) > 1 and all(map(_text_of, value))


def _text_of(value: Any) -> tuple[str, str] | None:
    """Return the name and value of the text of a tool's result: its own, that of its only part, or
    that of the one object inside it that has one."""
    found = text_of(value)
    if found is not None or not isinstance(value, dict):
        return found
    parts = value.get("content")
    inner = parts if isinstance(parts, list) and len(parts) == 1 else value.values()
    texts = [found for each in inner if (found := text_of(each)) is not None]
    return texts[0] if len(texts) == 1 else None


def _member(text: str, start: int, name: str) -> int:
    """Return where the value of an object's member begins; -1 if it has none of this name."""
    at = _skip(text, start + 1)
    while text[at : at + 1] == '"':
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if key == name:
            return at
        _, at = _DECODER.raw_decode(text, at)
        at = _skip(text, at)
        at = _skip(text, at + 1) if text[at : at + 1] == "," else at
    return -1


def _blocks(
    text: str, values: Sequence[_Value], *, is_tool: bool
) -> tuple[tuple[DocumentBlock, ...], str]:
    """Return the documents, or why the order of objects may be their content."""
    kinds = {type(each.value) for each in values}
    if kinds == {str}:
        texts = [each.value for each in values]
        keys = [""] * len(values)
    elif kinds == {dict}:
        found = [_text_of(each.value) if is_tool else text_of(each.value) for each in values]
        if not all(found) or is_record(values[0].value):
            return (), ""
        keys, texts = map(list, zip(*found, strict=True))
    else:
        return (), ""
    mean = sum(map(len, texts)) / len(texts)
    if mean < (1 if is_tool and kinds == {dict} else MIN_CHARS) or not all(map(str.strip, texts)):
        return (), ""
    if kinds == {dict} and (order := why_ordered([_fields(each.value) for each in values])):
        return (), order
    number = _number(values) if kinds == {dict} else ""
    of_values = list(zip(values, keys, texts, strict=True))
    blocks = tuple([_block(text, *each, number) for each in of_values])
    if number and not all(block.numbers for block in blocks):  # it stands elsewhere in one, too
        blocks = tuple([_block(text, *each, "") for each in of_values])
    return blocks, ""


def _fields(value: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an object, with those that a loader has written into its metadata."""
    metadata = value.get("metadata")
    return {**metadata, **value} if isinstance(metadata, dict) else value


def _number(values: Sequence[_Value]) -> str:
    """Return the field that counts the objects from 0 or 1; empty if there is none."""
    for name in _NUMBERS:
        numbers = [each.value.get(name) for each in values]
        if {*map(type, numbers)} <= {int, str} and is_count(list(map(str, numbers))):
            return name
    return ""


def _block(text: str, each: _Value, key: str, expected: str, number: str) -> DocumentBlock:
    start, end, value = each
    if not key:
        return DocumentBlock(start, end, expected, start + 1, end - 1)
    name = next(filter(None, [hint_name(value.get(name)) for name in _NAMES]), "")
    numbers: tuple[tuple[int, int], ...] = ()
    if number and text.count(f'"{number}"', start, end) == 1:
        at = text.index(f'"{number}"', start, end) + len(number) + 2
        if match := _DIGITS.match(text, at, end):
            numbers = (match.span(1),)
    is_json = value.get("type") == _TEXT and expected.startswith(("{", "["))
    at = -1 if is_json else start
    for _ in range(_MAX_KEYS):
        at = text.find(f'"{key}"', at, end) if at >= 0 else -1
        if at < 0:
            break
        at = opening = _skip(text, at + len(key) + 2)
        opening = _skip(text, opening + 1)
        if text[at : at + 1] == ":" and text[opening : opening + 1] == '"':
            literal, closing = _DECODER.raw_decode(text, opening)
            if literal == expected:
                return DocumentBlock(start, end, expected, opening + 1, closing - 1, numbers, name)
    return DocumentBlock(start, end, None, 0, 0, numbers, name)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at


def _reprs(text: str) -> Iterator[Candidate]:
    """Find LangChain documents as Python prints them: `[Document(page_content='...'), ...]`."""
    if "=" not in text or "page_content=" not in text:
        return
    blocks: list[DocumentBlock] = []
    behind = 0
    for match in _REPR.finditer(text):
        if match.start() < behind:
            continue
        if (behind := _repr_end(text, match.end())) < 0:
            return
        content = _REPR_TEXT.search(text, match.end(), behind)
        if content is None:
            return
        start, end = content.start(1) + 1, content.end(1) - 1
        blocks.append(DocumentBlock(match.start(), behind, text[start:end] or None, start, end))
        check_number(blocks)
    if len(blocks) < 2:
        return
    gaps = separators(text, [block[:2] for block in blocks])
    start, end = blocks[0].start, blocks[-1].end
    if len(set(gaps)) > 1 or not is_separator(gaps[0]):
        yield Candidate(start, end, "repr", problem="documents with different separators")
        yield from (Candidate(*block[:2], "repr") for block in blocks)
        return
    close = end + 1 if text[end : end + 1] == "]" else end
    yield Candidate(start, end, "repr", tuple(blocks), close)


def _repr_end(text: str, at: int) -> int:
    """Return the offset after the bracket that closes a call; -1 if none does."""
    depth = 1
    for match in _REPR_PART.finditer(text, at):
        if match[0] == "\n":
            return -1
        if match[0] in "()":
            depth += 1 if match[0] == "(" else -1
            if depth == 0:
                return match.end()
    return -1
