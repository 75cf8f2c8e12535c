"""Code fences under the names of their files, and lists that lie in a code block."""

import re
from bisect import bisect
from collections.abc import Iterator, Sequence

from ragboost.requests.formats.frames.candidate import Candidate
from ragboost.requests.formats.frames.not_documents import holds_documents, is_ordered_name
from ragboost.requests.formats.frames.siblings import is_separator, separators
from ragboost.requests.formats.frames.spans import LineMatch, lines
from ragboost.requests.formats.groups import DocumentBlock, hint_name

_FENCE = re.compile(r"\n(`{3,}|~{3,})[^\n`]*(?=\n|\Z)")
_NAME = re.compile(r"[\w@~][\w./\\@~+-]*\.\w{1,10}\b|[\w.-]+/[\w./-]+")
NAME = "name and fence"
_MIN_CHARS = 40
_MAX_FENCES = 10_000
_MAX_HEADING = 100
_MAX_HEADING_WORDS = 4


def fences(text: str) -> list[LineMatch]:
    """Return the lines that open or close a code block; none if there are absurdly many."""
    if "`" not in text and "~" not in text:
        return []
    found = list(lines(text, _FENCE))
    return found if len(found) <= _MAX_FENCES else []


def is_in_code(marks: Sequence[LineMatch], at: int) -> bool:
    """Return True after an odd number of code fences."""
    return bisect(marks, at, key=lambda mark: mark.start) % 2 == 1


def opened(text: str, marks: Sequence[LineMatch], found: Candidate) -> Candidate | None:
    """Return a list that stands in no code block, or fills the only one of a text below a line
    whose last word says document, as in `## Reference materials:`; None for any other."""
    if found.frame == NAME or not is_in_code(marks, found.start):
        return found
    opener, closer = marks[0], marks[-1]
    if not found.is_json or len(marks) != 2 or found.end > closer.start:
        return None
    if text[opener.end : found.start].strip() or text[found.end : closer.start].strip():
        return None
    begin = max(0, opener.start - _MAX_HEADING)
    heading = text[begin : opener.start].rstrip().rpartition("\n")[2].strip("#*:： \t")
    words = heading.split()
    if not 0 < len(words) <= _MAX_HEADING_WORDS or not words[-1].isalnum():
        return None
    if is_ordered_name(heading):
        return None
    return found._replace(close=closer.end) if holds_documents(words[-1]) else None


def find(text: str, marks: Sequence[LineMatch]) -> Iterator[Candidate]:
    """Find a list of files: the name on a line, the text in the fence below it, or the name behind
    the marks of the fence."""
    blocks: list[DocumentBlock] = []
    for opener, closer in zip(marks[::2], marks[1::2], strict=False):
        inside = _NAME.search(text, opener.start, opener.end)
        above = text.rfind("\n", 0, max(0, opener.start - 1)) + 1
        line = opener.start if inside else above
        name = inside or _NAME.search(text, line, opener.start)
        is_closed = text[closer.start : closer.end].strip() == opener.match[1]
        if not is_closed or name is None or opener.start - line > 300:
            return
        start, end = opener.end + 1, closer.start - 1
        if end - start < _MIN_CHARS:
            return
        shown = hint_name(name[0])
        blocks.append(DocumentBlock(line, closer.end, text[start:end], start, end, (), shown))
    if len(blocks) < 2 or len(marks) % 2:
        return
    gaps = set(separators(text, [block[:2] for block in blocks]))
    forms = {_form(text[block.start : block.text_start]) for block in blocks}
    start, end = blocks[0].start, blocks[-1].end
    if len(gaps) > 1 or len(forms) > 1 or not is_separator(min(gaps)):
        return
    yield Candidate(start, end, NAME, tuple(blocks), end)


def _form(opener: str) -> str:
    """Return a line with a file's name without this and without numbers of lines."""
    return re.sub(r"\d+", "#", _NAME.sub("~", opener.split("\n")[0], count=1))
