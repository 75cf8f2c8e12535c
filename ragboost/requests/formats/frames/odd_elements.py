"""Why elements of one tag are not certain to be one list of documents.

A document may hold the end of an element and the beginning of another, or both may be parts of
documents: then what each of them opens, holds or begins with differs from the others.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from ragboost.requests.formats.frames.not_documents import is_document_name
from ragboost.requests.formats.frames.siblings import CLOSER, Element, Tags, Wrappers

_LAST_CLOSER = re.compile(r"</([^\W\d][\w.:-]{0,63})>\s*\Z")
_MAX_CLOSER = 80
_FIRST_TAG = re.compile(r"\s*<([^\W\d][\w.:-]{0,63})[\s>]")
_HTML_TAGS = (
    "a abbr address article aside b blockquote body br caption center cite code col dd details "
    "div dl dt em figcaption figure font footer form h1 h2 h3 h4 h5 h6 head header hr html i "
    "iframe img li link main mark math meta nav ol option p pre q s script section small span "
    "strong style sub summary sup svg table tbody td th thead time tr tt u ul "
)
_HTML = frozenset(_HTML_TAGS.split())
HOLD_TEXTS = ("content", "document_content", "page_content", "context", "text", "body")
"""Inner elements that hold the text of a document."""


def why_uncertain(
    text: str,
    name: str,
    run: Sequence[Element],
    tags: Tags,
    depths: Mapping[str, Sequence[int]],
    around: Wrappers,
) -> str:
    """Return why elements may be other than documents; empty if nothing says so.

    Args:
        depths: openers less closers before each tag, and at the end, by name.
    """
    if not all(text[span.inner_start : span.inner_end].strip() for span in run):
        return "an element without text"
    if _is_torn(text, run, tags):
        return f"<{name}>: inside an element that begins nowhere"
    if other := _crossing(name, run, tags, depths):
        return f"<{name}>: across <{other}>"
    if _is_odd(text, run):
        return f"<{name}>: the first or the last is written otherwise"
    if inner := _halved(text, name, run, tags, depths):
        return f"<{name}>: some begin or end a <{inner}> that others hold"
    if _is_headed(text, run):
        return f"<{name}>: some begin with an element that others lack"
    if not is_document_name(name) and _is_part(text, run, around):
        return f"<{name}>: beside other texts in one element"
    return ""


def _is_torn(text: str, run: Sequence[Element], tags: Tags) -> bool:
    """Return True for the end of a file whose beginning is missing, as a document may be."""
    behind = CLOSER.match(text, run[-1].end)
    marks = tags.get(behind[1], ()) if behind is not None else ()
    return bool(marks) and (marks[0][2] or marks[0][0] > run[0].start)


def _crossing(
    name: str, run: Sequence[Element], tags: Tags, depths: Mapping[str, Sequence[int]]
) -> str:
    """Return another tag that is opened among the elements and closed outside, or the reverse: the
    first or the last element may begin in an example and end in a document; empty if there is none.
    """
    for other, marks in tags.items():
        begin, end = (bisect_left(marks, (at,)) for at in (run[0].start, run[-1].end))
        depth = depths[other]
        inside = depth[end] - depth[begin] if other != name else 0
        if inside * (depth[-1] - inside) < 0:
            return other
    return ""


def _halved(
    text: str,
    name: str,
    run: Sequence[Element],
    tags: Tags,
    depths: Mapping[str, Sequence[int]],
) -> str:
    """Return an inner tag of the frame that is open at the end of an element, or was open before
    it, as in a document that holds the end of one and the beginning of another; empty if there is
    none. The frame's are those with which half of the elements end, and those that hold texts."""
    ends = Counter(
        closer[1]
        for span in run
        if (
            closer := _LAST_CLOSER.search(
                text, max(span.inner_start, span.inner_end - _MAX_CLOSER), span.inner_end
            )
        )
    )
    inner = {tag for tag, num in ends.items() if num > 1 and 2 * num >= len(run)}
    for tag in ({*inner, *HOLD_TEXTS} - _HTML) & tags.keys() - {name}:
        marks, depth = tags[tag], depths[tag]
        for span in run:
            begin, end = (bisect_left(marks, (at,)) for at in (span.inner_start, span.inner_end))
            if depth[begin] != depth[end]:
                return tag
    return ""


def _is_headed(text: str, run: Sequence[Element]) -> bool:
    """Return True if most of the elements, but not all, begin with an inner one of the same name,
    which is the frame's unless it is HTML."""
    begins = [_FIRST_TAG.match(text, span.inner_start) for span in run]
    names = Counter(begin[1] for begin in begins if begin is not None)
    return any(
        1 < num < len(run) < 2 * num and name.lower() not in _HTML for name, num in names.items()
    )


def _is_part(text: str, run: Sequence[Element], around: Wrappers) -> bool:
    """Return True if the elements share a wrapper with other text: both may be documents."""
    start, end = run[0].start, run[-1].end
    outer = [each for each in around.found if each.inner_start <= start and end <= each.inner_end]
    if not outer:
        return False
    inner = max(outer)
    beside = text[inner.inner_start : start] + text[end : inner.inner_end]
    return any(map(str.isalnum, beside))


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
