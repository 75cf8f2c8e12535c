"""Containers: where a list of documents ends if its last document does not say so.

Wrapper tags on lines of their own, a pair of lines of dashes, and the prompts of LangChain whose
documents reach to the question.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from ragboost.requests.formats.frames.candidate import HiddenParts
from ragboost.requests.formats.frames.not_documents import holds_documents
from ragboost.requests.formats.frames.siblings import Wrappers
from ragboost.requests.formats.frames.spans import LineMatch, lines, strip

_RULE = re.compile(r"\n(([-=*_])\2{2,})([ \t]*\r?(?=\n|\Z))?")
_FRAMES = ("-----", "=====")  # rules that may enclose a list
_MAX_RULES = 1000
# Right above a rule: it begins another list.
_TITLED = re.compile(r"\n[ \t\r]*\n[^\n]*[:：][ \t\r]*\n?\Z")
_MAX_TITLE = 128
# LangChain's prompts announce their documents with these words.
_STUFF = "pieces of context to answer"
_STUFF_END = "\n\nQuestion:"
_MAX_INTRO = 4096


class Container(NamedTuple):
    """The inside of a container, without white space at its ends."""

    start: int
    end: int
    close: int  # after the mark that ends it


class Rule(NamedTuple):
    """A line of nothing but dashes, equals signs or the like."""

    start: int
    end: int
    mark: str

    @property
    def may_enclose(self) -> bool:
        return self.mark.startswith(_FRAMES)


class Surroundings:
    """The containers and rules around the lists of a text, found once, where a list may need it.

    Args:
        wrappers: of the text.
        hidden: stretches whose lines are not looked at.
    """

    def __init__(self, text: str, wrappers: Wrappers, hidden: HiddenParts) -> None:
        self._text = text
        self._wrappers = wrappers
        self._hidden = hidden

    @cached_property
    def _ruled(self) -> list[LineMatch]:
        return list(lines(self._text, _RULE, self._hidden.gaps(len(self._text))))

    @cached_property
    def rules(self) -> list[Rule]:
        """The lines of nothing but a rule; none if there are absurdly many."""
        found = [line for line in self._ruled if line.match[3] is not None]
        rules = [Rule(line.start, line.end, line.match[1]) for line in found]
        return rules if len(rules) <= _MAX_RULES else []

    @cached_property
    def begun_rules(self) -> set[str]:
        """Rules that a text follows on their line: a document may begin or end with one."""
        return {line.match[1] for line in self._ruled if line.match[3] is None}

    def has_odd_rule(self, stretches: Sequence[tuple[int, int]]) -> bool:
        """Return True if the last stretch has a rule that no other one has, or ends with one: the
        list may begin or end there, as a list inside a document of another list does."""
        starts = [rule.start for rule in self.rules]
        *inner, last = [
            self.rules[slice(*(bisect_left(starts, at) for at in ends))] for ends in stretches
        ]
        if last and not self._text[last[-1].end : stretches[-1][1]].strip():
            return True
        return not {rule.mark for rule in last} <= {rule.mark for each in inner for rule in each}

    @cached_property
    def containers(self) -> list[Container]:
        """The containers, inner ones first."""
        text = self._text
        found = [*_between(text, self.rules), *_stuffed(text)]
        found += [
            Container(s.inner_start, s.inner_end, s.end)
            for s in self._wrappers.found
            # Others hold the question, too.
            if holds_documents(text[s.start + 1 : s.inner_start - 1].split()[0])
        ]
        stripped = [Container(*strip(text, each.start, each.end), each.close) for each in found]
        inside = [each for each in stripped if each.start < each.end]
        return sorted(inside, key=lambda each: each.end - each.start)


def _between(text: str, rules: Sequence[Rule]) -> Iterator[Container]:
    by_mark: dict[str, list[Rule]] = {}
    rules = [rule for rule in rules if rule.may_enclose]
    for rule in rules:
        by_mark.setdefault(rule.mark, []).append(rule)
    stuff = text.lower().find(_STUFF) if by_mark else -1
    for same in by_mark.values():
        if len(same) != 2:
            continue
        first, second = same
        is_opener = _TITLED.search(text, max(0, second.start - _MAX_TITLE), second.start)
        # LangChain's documents stand below one rule.
        if not is_opener and not 0 <= stuff < first.start:
            yield Container(first.end, second.start, second.end)


def _stuffed(text: str) -> Iterator[Container]:
    """Yield the inside of LangChain's classic prompt: an instruction, the context, "Question:".

    Where more than the word for the answer follows, that line may stand in a document.
    """
    start = text.find("\n\n", 0, _MAX_INTRO)
    if start >= 0 and _STUFF in text[:start] and text.count(_STUFF_END, start) == 1:
        end = text.index(_STUFF_END, start)
        _question, *rest = filter(str.strip, text[end:].strip().splitlines())
        if len(rest) < 2 and all(line.rstrip().endswith(":") for line in rest):
            yield Container(start, end, end)
