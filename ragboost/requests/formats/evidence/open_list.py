"""Tell where the last document of a list ends whose documents have marks at their beginnings only.

It ends before a line that all texts have, or with the text, if its lines are those of a document
that stood elsewhere in another text. Else it stays where it is, and the others may move.
"""

from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.list_model import Cut
from ragboost.requests.formats.evidence.template import MIN_OBSERVATIONS, Template


class _Block(NamedTuple):
    """A document, and the repeated lines between it and the next one."""

    first: int
    end: int
    keys: tuple[int, ...]
    gap: tuple[int, ...]

    @property
    def digest(self) -> int:
        return hash(self.keys)


class OpenList:
    """The lists with marks of texts with one beginning: learns text by text."""

    def __init__(self, texts: Sequence[Digests], moved: Set[int]) -> None:
        self.template = Template(texts)
        # A label that fills its line, as `Passage 1:` does, is no part of a document.
        places = [
            frozenset((text.keys[at], n) for n, at in enumerate(text.marks)) for text in texts
        ]
        labels = {key for key, _ in frozenset.intersection(*places)}
        self.template.dropped |= labels
        self.template.constants -= labels
        self._places: dict[int, set[int]] = {}  # the blocks in which each line of all texts stood
        self._contents, self._sizes = set[int](), set[int]()  # of documents that are not the last
        self._gaps, self._ends = set[tuple[int, ...]](), set[tuple[int, ...]]()
        self._tails = set[int]()
        self._last: list[int] = []
        for text in texts:
            self.add(text)

    def add(self, text: Digests) -> bool:
        tail, mark = self._tail(text)
        self._blocks = [self._block(text, *ends) for ends in pairwise([*text.marks, tail])]
        for place, block in enumerate(self._blocks):
            for key in self.template.constants.intersection(block.keys):
                self._places.setdefault(key, set()).add(place)
        *inner, last = self._blocks
        self._contents.update([block.digest for block in inner])
        self._sizes.update([len(block.keys) for block in inner])
        self._gaps.update([block.gap for block in inner])
        self._ends.add(last.gap)
        self._tails.add(mark)
        self._last.append(last.digest)
        return True

    def cut(self) -> Cut | None:
        """Return the lines of each document of the latest text that may move."""
        *inner, last = self._blocks
        if any(self._is_interrupted(block, place) for place, block in enumerate(inner)):
            return None
        if sum(digest in self._contents for digest in self._last) < MIN_OBSERVATIONS:
            return None
        is_known = last.digest in self._contents or {len(last.keys)} == self._sizes
        are_alike = len(self._gaps) == len(self._ends) == 1 and self._ends <= self._gaps | {()}
        if len(self._tails) == 1 and is_known and are_alike:
            return Cut([(block.first, block.end) for block in self._blocks], has_marks=True)
        return Cut([(b.first, b.end + len(b.gap)) for b in inner], has_marks=True)

    def _is_interrupted(self, block: _Block, place: int) -> bool:
        """Return True if a line of the template may stand behind the document."""
        lines = [key for key in block.keys if key in self._places]
        return 0 < len(lines) < len(block.keys) or any(self._places[k] == {place} for k in lines)

    def _tail(self, text: Digests) -> tuple[int, int]:
        """Return the first line behind the list, and its mark; 0: none."""
        for i in range(text.marks[-1] + 1, len(text.keys)):
            for mark in (text.keys[i], text.labels[i]):
                if mark in self.template.constants:
                    return i, mark
        return len(text.keys), 0

    def _block(self, text: Digests, first: int, stop: int) -> _Block:
        dropped, end = self.template.dropped, stop
        while end > first + 1 and text.keys[end - 1] in dropped:
            end -= 1
        keys = tuple([key for key in text.keys[first:end] if key not in dropped])
        return _Block(first, end, keys, tuple(text.keys[end:stop]))
