"""The operator's own frames (`formats.frames`): texts with holes, as in `[CONTEXT {n}]:`."""

import re
from collections.abc import Iterator

from ragboost.config import FrameSettings
from ragboost.requests.formats.frames.candidate import Candidate
from ragboost.requests.formats.frames.elements import candidate, whole
from ragboost.requests.formats.frames.siblings import (
    Element,
    Mark,
    OddMarkError,
    is_count,
    is_quoted,
    is_separator,
    pair,
    separators,
)
from ragboost.requests.formats.frames.spans import check_number, strip
from ragboost.requests.formats.groups import DocumentBlock

_HOLES = re.compile(r"\{(n|name)\}")
_OPEN_TAG = re.compile(r"<\w[^<>]*")  # its attributes follow
_PATTERNS = {"n": r"(\d{1,6})", "name": r"[^\n]{1,200}?"}


def find(text: str, frame: FrameSettings) -> Iterator[Candidate]:
    opener, closer = _compiled(frame.start), _compiled(frame.end)
    if opener.search(text) is None:
        return
    if frame.separator is not None:
        yield from _separated(text, frame, opener, closer, frame.separator)
        return
    openers: list[Mark] = [(*match.span(), False) for match in opener.finditer(text)]
    closers: list[Mark] = [(*match.span(), True) for match in closer.finditer(text)]
    if frame.start == frame.end:
        openers, closers = openers[::2], [(start, end, True) for start, end, _ in openers[1::2]]
    marks = [mark for mark in sorted(openers + closers) if not is_quoted(text, *mark[:2])]
    check_number(marks)
    if not marks:
        return
    start, end = marks[0][0], marks[-1][1]
    try:
        spans = pair(text, marks)
        if is_tag := _OPEN_TAG.fullmatch(frame.start):
            spans = [whole(text, span) for span in spans]
    except OddMarkError as error:
        yield Candidate(start, end, frame.name, problem=str(error))
        return
    gaps = separators(text, [span[:2] for span in spans])
    if len(spans) < 2:
        return
    if len(set(gaps)) > 1 or not is_separator(gaps[0]):
        yield Candidate(start, end, frame.name, problem="text between the documents")
        return
    if is_tag:
        yield candidate(text, frame.name, spans)
        return
    numbers = _numbers(text, spans, opener, closer)
    blocks = tuple(
        [_block(text, span, places) for span, places in zip(spans, numbers, strict=True)]
    )
    yield Candidate(spans[0].start, spans[-1].end, frame.name, blocks, spans[-1].end)


def _compiled(mark: str) -> re.Pattern[str]:
    parts = _HOLES.split(mark)  # texts and names of holes in turn
    pattern = [_PATTERNS[part] if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    return re.compile("".join(pattern))


def _numbers(
    text: str, spans: list[Element], opener: re.Pattern[str], closer: re.Pattern[str]
) -> list[tuple[tuple[int, int], ...]]:
    """Return the places of the numbers of each document, if these count the documents."""
    if not opener.groups:
        return [()] * len(spans)
    found = []
    for span in spans:
        marks = opener.match(text, span.start), closer.match(text, span.inner_end)
        found.append([mark for mark in marks if mark is not None and mark.re.groups])
    values = [[mark[1] for mark in marks] for marks in found]
    if not is_count([each[0] for each in values]) or any(len(set(each)) > 1 for each in values):
        return [()] * len(spans)
    return [tuple([mark.span(1) for mark in marks]) for marks in found]


def _block(text: str, span: Element, numbers: tuple[tuple[int, int], ...]) -> DocumentBlock:
    start, end = strip(text, span.inner_start, span.inner_end)
    return DocumentBlock(span.start, span.end, text[start:end] or None, start, end, numbers)


def _separated(
    text: str,
    frame: FrameSettings,
    opener: re.Pattern[str],
    closer: re.Pattern[str],
    separator: str,
) -> Iterator[Candidate]:
    """Find documents that a separator divides, between marks that enclose all of them once."""
    starts = list(opener.finditer(text))
    ends = list(closer.finditer(text, starts[0].end()))
    if len(starts) != 1 or len(ends) != 1:
        problem = "the marks around the list occur more than once"
        yield Candidate(starts[0].start(), len(text), frame.name, problem=problem)
        return
    blocks: list[DocumentBlock] = []
    at = starts[0].end()
    for piece in text[at : ends[0].start()].split(separator):
        first, last = strip(text, at, at + len(piece))
        if first < last:
            blocks.append(DocumentBlock(first, last, text[first:last], first, last))
            check_number(blocks)
        at += len(piece) + len(separator)
    if len(blocks) > 1:
        close = ends[0].end()
        yield Candidate(starts[0].start(), close, frame.name, tuple(blocks), close)
