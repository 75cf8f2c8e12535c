"""Elements of one tag, whatever its name: `<source id="1" name="a.pdf">...</source>`.

Attributes and inner tags move with their document; a number that counts the elements belongs to the
place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ragboost.requests.formats.frames.candidate import Candidate, HiddenParts, why_ordered
from ragboost.requests.formats.frames.not_documents import (
    are_documents,
    is_document_name,
    is_ordered_name,
)
from ragboost.requests.formats.frames.odd_elements import HOLD_TEXTS, why_uncertain
from ragboost.requests.formats.frames.siblings import (
    CLOSER,
    MAX_TAG,
    Element,
    OddMarkError,
    Tags,
    Wrappers,
    breaks_count,
    depths_of,
    is_count,
    is_separator,
    pair,
    separators,
    tag_end,
)
from ragboost.requests.formats.frames.spans import behind_closing_tag, strip
from ragboost.requests.formats.groups import DocumentBlock, hint_name

_MAX_NAME = 200
# A value without quotes ends at the next attribute.
_ATTRIBUTE = re.compile(
    r"""(?<![\w:.-])([\w:.-]++)=(?:"([^"]*+)"|'([^']*+)'"""
    r"""|([^\s"'<>=][^<>=]{0,200}?)(?=\s+[\w:.-]+=|\s*/?>))"""
)
_NUMBERS = ("index", "id", "number", "num", "n", "i", "idx", "no", "nr")
_NAMES = ("title", "name", "source", "path", "url", "filename", "fileName", "id", "doc_id")
# Short elements, and the one that holds the text.
_CHILDREN = re.compile(r"((?:<(\w{1,32})>[^\n]{0,300}?</\2>\s*){0,8})<(\w{1,32})>")
_CHILD = re.compile(r"\s*<(\w{1,32})>([^<\n]{0,300})</\1>")
_MAX_FIELDS = 64
_OPENER = re.compile(r"<([^\W\d][\w.:-]{0,63})(?=[\s>])[^<>]{0,1000}>\s*\Z")


class _Attribute(NamedTuple):
    value: str
    start: int
    end: int


def find(text: str, tags: Tags, hidden: HiddenParts, around: Wrappers) -> Iterator[Candidate]:
    """Find lists of elements.

    Args:
        hidden: stretches in which a tag is part of a string.
    """
    depths = {name: depths_of(marks) for name, marks in tags.items()}
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
            problem = why_uncertain(text, name, run, tags, depths, around)
            attributes = [_attributes(text, span) for span in run]
            order = "" if problem else why_ordered(_fields(text, run, attributes))
            if problem or order:
                start, end = run[0].start, run[-1].end
                yield Candidate(start, end, f"<{name}>", problem=problem, order=order)
            else:
                yield _candidate(text, f"<{name}>", run, attributes)


def whole(text: str, span: Element) -> Element:
    """Find where the opener ends.

    Raises:
        OddMarkError: nowhere.
    """
    if text[span.inner_start - 1] == ">":
        return span
    inner = tag_end(text, span.start)
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
    start = run[0].start
    at = max(0, text.rfind("<", max(0, start - MAX_TAG), start))
    before = _OPENER.match(text, at, start)
    behind = CLOSER.match(text, run[-1].end)
    return before is not None and behind is not None and before[1] == behind[1]


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
    if problem := _unlike(attributes, number):
        return Candidate(run[0].start, run[-1].end, name, problem=f"{name}: {problem}")
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


def _attributes(text: str, span: Element) -> dict[str, _Attribute]:
    found: dict[str, _Attribute] = {}
    if text.find("=", span.start, span.inner_start) < 0:
        return found
    for match in _ATTRIBUTE.finditer(text, span.start, span.inner_start):
        group = match.lastindex or 0
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


def _unlike(attributes: Sequence[Mapping[str, _Attribute]], number: str | None) -> str:
    """Return why the openers are not those of one list; empty if they are alike: one in a document
    may lack what they begin with, or break their count."""
    names = {next(iter(each), "") for each in attributes}
    if len(names) > 1:
        return "elements that begin otherwise"
    counts = [name for name in attributes[0] if name in _NUMBERS] if number is None else []
    for name in counts:
        if breaks_count([each[name].value for each in attributes if name in each]):
            return "the numbers have gaps or repeat"
    return ""


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
    if match is None or not (match[1] or match[3] in HOLD_TEXTS):
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
