"""Containers: where a list of documents ends if its last document does not say so.

Wrapper tags on lines of their own, a pair of lines of dashes, and the prompts of LangChain whose
documents reach to the end of the message or to the question.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from ragboost.formats.frames.elements import wrappers
from ragboost.formats.frames.spans import strip

_RULE = re.compile(r"^(-{5,}|={5,})[ \t]*\r?$", re.MULTILINE)
_MAX_RULES = 1000
# LangChain's prompts announce their documents with these words.
_STUFF = "pieces of context to answer"
_STUFF_END = "\n\nQuestion:"


class Container(NamedTuple):
    """The inside of a container, without white space at its ends."""

    start: int
    end: int
    close: int  # after the mark that ends it


def find(text: str) -> list[Container]:
    """Return the containers of a text, inner ones first."""
    found = [*_between_rules(text), *_stuffed(text)]
    found += [Container(s.inner_start, s.inner_end, s.end) for s in wrappers(text)]
    stripped = [Container(*strip(text, each.start, each.end), each.close) for each in found]
    return sorted((c for c in stripped if c.start < c.end), key=lambda each: each.end - each.start)


def rules(text: str) -> list[re.Match[str]]:
    """Return the lines of nothing but dashes or equals signs."""
    if "-----" not in text and "=====" not in text:
        return []
    found = list(_RULE.finditer(text))
    return found if len(found) <= _MAX_RULES else []


def _between_rules(text: str) -> Iterator[Container]:
    lines = rules(text)
    by_mark: dict[str, list[re.Match[str]]] = {}
    for line in lines:
        by_mark.setdefault(line[1], []).append(line)
    for pair in by_mark.values():
        if len(pair) == 2:
            yield Container(pair[0].end(), pair[1].start(), pair[1].end())
        elif len(pair) == 1 == len(lines) and _STUFF in text[: pair[0].start()].lower():
            yield Container(pair[0].end(), len(text), len(text))


def _stuffed(text: str) -> Iterator[Container]:
    """Yield the inside of LangChain's classic prompt: an instruction, the context, "Question:"."""
    intro = text.find(_STUFF)
    start = text.find("\n\n", intro) if intro >= 0 else -1
    if start >= 0 and text.count(_STUFF_END, start) == 1:
        end = text.index(_STUFF_END, start)
        yield Container(start, end, end)
