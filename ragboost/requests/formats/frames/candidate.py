"""A stretch of a text that looks like a list of documents, and which of several is the frame."""

import itertools
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ragboost.requests.formats.frames.sequences import is_sequence
from ragboost.requests.formats.groups import DocumentBlock, TextGroup

_MAX_NAMED = 16  # fields that are asked one by one
_MAX_SHOWN = 40  # characters of a field's name


class Candidate(NamedTuple):
    """A list whose parse is certain, or a stretch that only looks like one.

    start                                                   end    close
    | block | separator | block | separator | block         |      |
    """

    start: int
    end: int
    frame: str  # name, as reports show it
    blocks: tuple[DocumentBlock, ...] = ()  # empty: what is here is left alone
    close: int = 0  # after the mark that ends the list; hints stand behind it
    is_json: bool = False
    marks: tuple[int, ...] = ()  # where blocks begin, if only the last one's end is unknown
    numbers: tuple[tuple[int, int], ...] = ()  # their digits, if the marks count the blocks
    problem: str = ""  # why the parse is not certain
    order: str = ""  # why the order may be what the list says, so that it is left alone

    def group(self, text: str) -> TextGroup:
        close = max(self.close, self.blocks[-1].end)
        return TextGroup(text, self.blocks, close, self.is_json, self.frame)


def outermost(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Choose among candidates that overlap: what lies inside another one is its content.

    Two that cross each other leave both uncertain.
    """
    chosen: list[Candidate] = []
    for new in sorted(candidates, key=lambda each: (each.start, -each.end)):
        if not chosen or new.start >= chosen[-1].end:
            chosen.append(new)
        elif new.end > chosen[-1].end:
            old = chosen.pop()
            problem = f"{old.frame} and {new.frame} overlap"
            chosen.append(Candidate(old.start, new.end, old.frame, problem=problem))
    return chosen


def why_ordered(fields: Sequence[Mapping[str, object]]) -> str:
    """Return why the order of elements with these fields may be their content; empty if it is not:
    the first field that tells it alone, if one does."""
    if not is_sequence(fields):
        return ""
    for name in itertools.islice(fields[0], _MAX_NAMED):
        if is_sequence([{name: each.get(name)} for each in fields]):
            return f"{name[:_MAX_SHOWN]!r} says that their order may be their content"
    return "their fields are those of messages or of a recording, so that their order is content"


class HiddenParts:
    """Stretches of a text in which a mark is part of a string or of a document."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._chosen = outermost(candidates)
        self._starts = [each.start for each in self._chosen]

    def __bool__(self) -> bool:
        return bool(self._starts)

    def gaps(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield the stretches of a text of this size that are not hidden."""
        at = 0
        for each in self._chosen:
            yield at, each.start
            at = each.end
        yield at, size

    def __contains__(self, at: int) -> bool:
        i = bisect(self._starts, at)
        return i > 0 and at < self._chosen[i - 1].end
