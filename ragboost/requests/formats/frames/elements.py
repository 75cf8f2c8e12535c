"""Elements of one tag, whatever its name: `<source id="1" name="a.pdf">...</source>`.

Attributes and inner tags move with their document; a number that counts the elements belongs to the
place.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ragboost.requests.formats.documents import TooManyDocumentsError
from ragboost.requests.formats.frames.candidate import Candidate, HiddenParts
from ragboost.requests.formats.frames.not_documents import (
    are_documents,
    is_document_name,
    is_ordered_name,
)
from ragboost.requests.formats.frames.sequences import is_sequence
from ragboost.requests.formats.frames.siblings import (
    Element,
    Mark,
    OddMarkError,
    is_separator,
    pair,
    separators,
)
from ragboost.requests.formats.frames.spans import MAX_DOCUMENTS, behind_closing_tag, strip
from ragboost.requests.formats.groups import DocumentBlock, hint_name

_MAX_TAG = 1024
_MAX_NAME = 200
_MAX_NAMES = 64  # tags of one text that are looked at
_TAG = re.compile(r"<(/?)([^\W\d][\w.:-]{0,63})(?:>|(?=\s))")
_QUOTE_OR_END = re.compile("[\"'>]")
_ATTRIBUTE = re.compile(r"""(?<![\w:.-])([\w:.-]++)=(?:"([^"]*+)"|'([^']*+)')""")
_NUMBERS = ("index", "id", "number", "num", "n", "i", "idx", "no", "nr", "rank", "position")
_NAMES = ("title", "name", "source", "path", "url", "filename", "fileName", "id", "doc_id")
# Short elements, and the one that holds the text.
_CHILDREN = re.compile(r"((?:<(\w{1,32})>[^\n]{0,300}?</\2>\s*){0,8})<(\w{1,32})>")
_CHILD = re.compile(r"\s*<(\w{1,32})>([^<\n]{0,300})</\1>")
_MAX_FIELDS = 64
_CONTENTS = ("content", "document_content", "page_content", "context", "text", "body")
_OPENER = re.compile(r"<([^\W\d][\w.:-]{0,63})(?=[\s>])[^<>]{0,1000}>\s*\Z")
_CLOSER = re.compile(r"\s*</([^\W\d][\w.:-]{0,63})>")


class _Attribute(NamedTuple):
    value: str
    start: int
    end: int


Tags = Mapping[str, Sequence[Mark]]
"""The tags of each name that is closed somewhere, in the order of the text."""


def find_tags(text: str) -> Tags:
    """Find the tags of a text; of one with very many names, those of the first."""
    marks: dict[str, list[Mark]] = {}
    closed: dict[str, None] = {}
    num, start = 0, text.find("<")
    while start >= 0:  # `find` is many times faster than the expression's own search
        if match := _TAG.match(text, start):
            end, num = match.end(), num + 1
            slash, name = match.groups()
            if not slash:
                marks.setdefault(name, []).append((start, end, False))
            elif text[end - 1] == ">":
                closed[name] = None
                marks.setdefault(name, []).append((start, end, True))
            if num > MAX_DOCUMENTS:
                raise TooManyDocumentsError(num, MAX_DOCUMENTS)
        start = text.find("<", start + 1)
    return {name: marks[name] for name in list(closed)[:_MAX_NAMES]}


def find(text: str, tags: Tags, hidden: HiddenParts) -> Iterator[Candidate]:
    """Find lists of elements.

    Args:
        hidden: stretches in which a tag is part of a string.
    """
    totals = {name: _balance(marks) for name, marks in tags.items()}
    for name, marks in tags.items():
        marks = [mark for mark in marks if mark[0] not in hidden] if hidden else marks
        num = sum([is_closer for _, _, is_closer in marks])
        if num == 0 or (num == 1 and not is_document_name(name)):
            continue
        try:
            spans = pair(text, marks)
            spans = [whole(text, span) for span in spans]
            runs = _runs(text, spans)
        except OddMarkError as error:
            if is_document_name(name) or not is_ordered_name(name):
                where = f"<{name}>"
                yield Candidate(marks[0][0], marks[-1][1], where, problem=f"{where}: {error}")
            continue
        if len(spans) == 1 and is_document_name(name):
            yield Candidate(*spans[0][:2], f"<{name}>")
        for run in runs:
            texts = [text[span.inner_start : span.inner_end] for span in run]
            if not are_documents(name, texts):
                continue
            problem = "" if all(map(str.strip, texts)) else "an element without text"
            if _is_torn(text, run, tags):
                problem = f"<{name}>: inside an element that begins nowhere"
            elif crossing := _crossing(name, run, tags, totals):
                problem = f"<{name}>: across <{crossing}>"
            elif _is_odd(text, run):
                problem = f"<{name}>: the first or the last is written otherwise"
            attributes = [_attributes(text, span) for span in run]
            if problem or is_sequence(_fields(text, run, attributes)):
                yield Candidate(run[0].start, run[-1].end, f"<{name}>", problem=problem)
            else:
                yield _candidate(text, f"<{name}>", run, attributes)


def wrappers(text: str, tags: Tags) -> Iterator[Element]:
    """Yield the elements that occur once, on lines of their own: they enclose a list."""
    for marks in tags.values():
        openers = [m for m in marks if not m[2] and text[m[1] - 1] == ">"]
        closers = [m for m in marks if m[2]]
        begin = next((m for m in openers if text[m[0] - 1 : m[0]] in ("", "\n")), None)
        end = closers[-1]
        if begin is None or not begin[1] <= end[0] - 1 or text[end[0] - 1] != "\n":
            continue
        if openers[-1] == begin and (len(closers) == 1 or closers[-2] < begin):
            yield Element(begin[0], end[1], begin[1], end[0] - 1)


def whole(text: str, span: Element) -> Element:
    """Find where the opener ends.

    Raises:
        OddMarkError: nowhere.
    """
    if text[span.inner_start - 1] == ">":
        return span
    inner = _tag_end(text, span.start)
    if inner < 0 or inner > span.inner_end or text[inner - 2] == "/":
        raise OddMarkError("an opening tag that does not end")
    return span._replace(inner_start=inner)


def _runs(text: str, spans: list[Element]) -> list[list[Element]]:
    """Return the lists that the elements of one tag form.

    Several are certain only if each one has a wrapper of its own.
    """
    gaps = set(separators(text, [span[:2] for span in spans]))
    if len(gaps) == 1 and is_separator(*gaps):
        return [spans]
    runs: list[list[Element]] = []
    for span in spans:
        if runs and is_separator(text[runs[-1][-1].end : span.start]):
            runs[-1].append(span)
        else:
            runs.append([span])
    if len(runs) > 1 and not all(_is_wrapped(text, run) for run in runs):
        if max(map(len, runs)) > 1:
            raise OddMarkError("text between the elements")
        return []
    for run in runs:
        if len(set(separators(text, [span[:2] for span in run]))) > 1:
            raise OddMarkError("elements with different separators")
    return [run for run in runs if len(run) > 1]


def _is_wrapped(text: str, run: Sequence[Element]) -> bool:
    before = _OPENER.search(text, max(0, run[0].start - _MAX_TAG), run[0].start)
    behind = _CLOSER.match(text, run[-1].end)
    return before is not None and behind is not None and before[1] == behind[1]


def _is_torn(text: str, run: Sequence[Element], tags: Tags) -> bool:
    """Return True for the end of a file whose beginning is missing, as a document may be."""
    behind = _CLOSER.match(text, run[-1].end)
    marks = tags.get(behind[1], ()) if behind is not None else ()
    return bool(marks) and (marks[0][2] or marks[0][0] > run[0].start)


def _crossing(name: str, run: Sequence[Element], tags: Tags, totals: Mapping[str, int]) -> str:
    """Return another tag that is opened among the elements and closed outside, or the reverse: the
    first or the last element may begin in an example and end in a document; empty if there is none.
    """
    for other, marks in tags.items():
        begin, end = (bisect_left(marks, (at,)) for at in (run[0].start, run[-1].end))
        inside = _balance(marks[begin:end]) if other != name and begin < end else 0
        if inside * (totals[other] - inside) < 0:
            return other
    return ""


def _balance(marks: Sequence[Mark]) -> int:
    return sum([-1 if is_closer else 1 for _, _, is_closer in marks])


def _is_odd(text: str, run: Sequence[Element]) -> bool:
    """Return True if the first element alone has, or lacks, a line break behind its opener, or the
    last one before its closer, and it is longer than the others: an example may begin or end it."""
    begins = [text[span.inner_start] in "\r\n" for span in run]
    ends = [text[span.inner_end - 1] in "\r\n" for span in run]
    is_first_odd, is_last_odd = begins[0] not in begins[1:], ends[-1] not in ends[:-1]
    if not (is_first_odd or is_last_odd):
        return False
    lines = [text.count("\n", span.inner_start, span.inner_end) for span in run]
    return (is_first_odd and lines[0] > max(lines[1:])) or (
        is_last_odd and lines[-1] > max(lines[:-1])
    )


def candidate(text: str, name: str, run: Sequence[Element]) -> Candidate:
    """Make a list of elements, whose openers end with a `>`."""
    return _candidate(text, name, run, [_attributes(text, span) for span in run])


def _candidate(
    text: str,
    name: str,
    run: Sequence[Element],
    attributes: Sequence[Mapping[str, _Attribute]],
) -> Candidate:
    number = _number(attributes)
    inner = [strip(text, span.inner_start, span.inner_end) for span in run]
    if any(attributes) or any(text.startswith("<", start) for start, _ in inner):
        parts = zip(run, attributes, inner, _contents(text, inner), strict=True)
        blocks = tuple([_block(text, *each, number=number) for each in parts])
    else:  # nothing but texts
        blocks = tuple(
            [
                DocumentBlock(span.start, span.end, text[start:end] or None, start, end)
                for span, (start, end) in zip(run, inner, strict=True)
            ]
        )
    end = run[-1].end
    return Candidate(run[0].start, end, name, blocks, behind_closing_tag(text, end))


def _tag_end(text: str, at: int) -> int:
    """Return the offset after a start tag's `>`, skipping quoted values; -1 if it has none."""
    limit = min(len(text), at + _MAX_TAG)
    while (match := _QUOTE_OR_END.search(text, at, limit)) is not None:
        if match[0] == ">":
            return match.end()
        at = text.find(match[0], match.end(), limit) + 1
        if not at:
            break
    return -1


def _attributes(text: str, span: Element) -> dict[str, _Attribute]:
    found: dict[str, _Attribute] = {}
    if text.find("=", span.start, span.inner_start) < 0:
        return found
    for match in _ATTRIBUTE.finditer(text, span.start, span.inner_start):
        group = 2 if match[2] is not None else 3
        found.setdefault(match[1], _Attribute(match[group], *match.span(group)))
    return found


def _fields(
    text: str, run: Sequence[Element], attributes: Sequence[Mapping[str, _Attribute]]
) -> list[dict[str, str]]:
    """Return the attributes of each element, and the short elements with which it begins; of no
    other one if the first has none."""
    found: list[dict[str, str]] = []
    for span, each in zip(run, attributes, strict=True):
        fields = {name: attribute.value for name, attribute in each.items()}
        at = span.inner_start
        while len(fields) < _MAX_FIELDS and (match := _CHILD.match(text, at, span.inner_end)):
            fields.setdefault(match[1], match[2].strip())
            at = match.end()
        found.append(fields)
        if not found[0]:
            break
    return found


def _number(attributes: Sequence[Mapping[str, _Attribute]]) -> str | None:
    """Return the attribute that counts the elements from 0 or 1; None if there is none."""
    for name in _NUMBERS if attributes[0] else ():
        values = [each[name].value for each in attributes if name in each]
        if is_count(values) and len(values) == len(attributes):
            return name
    return None


def is_count(values: Sequence[str]) -> bool:
    """Return True for the numbers from 0 or 1 on without a gap, as texts."""
    return any(values == [str(first + at) for at in range(len(values))] for first in (0, 1))


def _block(
    text: str,
    span: Element,
    attributes: Mapping[str, _Attribute],
    inner: tuple[int, int],
    content: tuple[int, int],
    *,
    number: str | None,
) -> DocumentBlock:
    named = [name for name in _NAMES if name != number and name in attributes] if attributes else ()
    name = _shown(attributes[named[0]].value) if named else _inner_name(text, inner[0])
    start, end = content
    numbers = () if number is None else (attributes[number][1:],)
    return DocumentBlock(span.start, span.end, text[start:end] or None, start, end, numbers, name)


def _contents(text: str, inner: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return where the texts are: maybe in inner elements, if all documents have the same one.

    Where only some have one, it may be theirs or the frame's: the texts cannot be told apart.
    """
    found = [_content(text, *ends) for ends in inner]
    tags = {tag for tag, _, _ in found}
    return [(start, end if len(tags) == 1 else start) for _, start, end in found]


def _content(text: str, start: int, end: int) -> tuple[str, int, int]:
    """Return the tag of the inner element that holds the text, behind those with its names, and
    where the text is; without a tag if there is none."""
    whole = ("", start, end)
    if not text.startswith("<", start):
        return whole
    match = _CHILDREN.match(text, start, end)
    if match is None or not (match[1] or match[3] in _CONTENTS):
        return whole
    closer = f"</{match[3]}>"
    if not text.startswith(closer, end - len(closer)) or match.end() > end - len(closer):
        return whole
    if text.count(f"<{match[3]}>", start, end) > 1:  # a list inside the document
        return whole
    first, last = strip(text, match.end(), end - len(closer))
    return (match[3], first, last) if first < last else whole


def _inner_name(text: str, start: int) -> str:
    for tag in ("source", "title", "filename", "name") if text.startswith("<", start) else ():
        if text.startswith(f"<{tag}>", start):
            end = text.find(f"</{tag}>", start, start + _MAX_NAME)
            return _shown(text[start + len(tag) + 2 : end].strip()) if end >= 0 else ""
    return ""


def _shown(name: str) -> str:
    return "" if "\n" in name else hint_name(name)
