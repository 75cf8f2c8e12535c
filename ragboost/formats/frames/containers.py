"""Containers: where a list of documents ends if its last document does not say so.

Wrapper tags on lines of their own, a pair of lines of dashes, and the prompts of LangChain whose
documents reach to the end of the message or to the question.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ragboost.formats.frames.candidate import HiddenParts
from ragboost.formats.frames.elements import wrappers
from ragboost.formats.frames.spans import lines, strip

_RULE = re.compile(r"\n(-{5,}|={5,})[ \t]*\r?(?=\n|\Z)")
_MAX_RULES = 1000
# LangChain's prompts announce their documents with these words.
_STUFF = "pieces of context to answer"
_STUFF_END = "\n\nQuestion:"


class Container(NamedTuple):
    """The inside of a container, without white space at its ends."""

    start: int
    end: int
    close: int  # after the mark that ends it


def find(text: str, hidden: HiddenParts) -> list[Container]:
    """Return the containers of a text, inner ones first."""
    found = [*_between_rules(text, hidden), *_stuffed(text)]
    found += [Container(s.inner_start, s.inner_end, s.end) for s in wrappers(text)]
    stripped = [Container(*strip(text, each.start, each.end), each.close) for each in found]
    return sorted((c for c in stripped if c.start < c.end), key=lambda each: each.end - each.start)


class Rule(NamedTuple):
    """A line of nothing but dashes or equals signs."""

    start: int
    end: int
    mark: str


def rules(text: str, hidden: HiddenParts) -> list[Rule]:
    """Return the rules of a text; none if it has absurdly many."""
    if "\n-" not in text and "\n=" not in text and text[:1] not in ("-", "="):
        return []
    gaps = list(hidden.gaps(len(text)))
    found = [Rule(line.start, line.end, line.match[1]) for line in lines(text, _RULE, gaps)]
    return found if len(found) <= _MAX_RULES else []


def _between_rules(text: str, hidden: HiddenParts) -> Iterator[Container]:
    found = rules(text, hidden)
    by_mark: dict[str, list[Rule]] = {}
    for rule in found:
        by_mark.setdefault(rule.mark, []).append(rule)
    for same in by_mark.values():
        if len(same) == 2:
            yield Container(same[0].end, same[1].start, same[1].end)
        elif len(same) == 1 == len(found) and _STUFF in text[: same[0].start].lower():
            yield Container(same[0].end, len(text), len(text))


def _stuffed(text: str) -> Iterator[Container]:
    """Yield the inside of LangChain's classic prompt: an instruction, the context, "Question:"."""
    intro = text.find(_STUFF)
    start = text.find("\n\n", intro) if intro >= 0 else -1
    if start >= 0 and text.count(_STUFF_END, start) == 1:
        end = text.index(_STUFF_END, start)
        yield Container(start, end, end)
