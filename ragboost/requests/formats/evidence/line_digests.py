"""Digests of the lines of a text, so that traffic can be compared without keeping texts."""

import re
from array import array
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from ragboost.requests.formats.citations import WORD

MAX_LINES = 1024
_MAX_LABEL = 40
_SHORT = 40  # characters; a line that long which occurs twice in a text is a copy, not a mark
# A place in the list, in front of a line: `[3] `, `3. `, `(3) `, `- 3: `, `**Document 3:** `.
_NUMBER = re.compile(
    r"(?:[-*+•]\s+|#{1,6}\s+|[=~-]{3,32}\s+)?(?:\*\*)?[\[(（【]?"
    rf"(?:{WORD}[ _-]?){{0,2}}[\[(（【]?\#?(\d{{1,4}})"
    r"(?:[\])]?[.:]?(?:\*\*)?(?:(?<=\])|\s)|[】：、）])\s*"
)
# Words that announce documents which begin on their line: `Context: text`.
_ANNOUNCES = re.compile(
    r"(?:(?:context|documents|information|knowledge|passages)\s?:|【[^】\n\d]{1,12}】[:：]?"
    r"|(?:已知信息|参考资料|上下文|背景知识)\s?[:：])\s*(?=\S)",
    re.IGNORECASE,
)
_FOUR_LETTERS = re.compile(r"(?:[\W_]*+[^\W_]){4}")


class TextLine(NamedTuple):
    start: int
    end: int  # without white space
    text_start: int  # behind a leading number
    number: int  # in front of it; -1: none
    key: int  # digest of the text
    full_key: int  # and of the number
    label: int  # digest of what stands before its first colon; 0: none
    is_weak: bool  # too short or too common to show that a document has moved


class Digests:
    """The digests of one text's lines, without the lines."""

    __slots__ = ("copies", "keys", "labels", "marks", "numbers", "repeated", "weak")

    def __init__(self, lines: Sequence[TextLine], marks: Sequence[int]) -> None:
        keys = [line.key for line in lines]
        self.copies = False  # True if a whole line of text occurs twice, as in equal documents
        self.repeated: Set[int] = frozenset()
        if len(set(keys)) < len(keys):
            counts = Counter(keys)
            self.copies = any(
                counts[line.key] > 1 and line.end - line.start > _SHORT for line in lines
            )
            # Lines that differ by nothing but their numbers are told apart by these.
            keys = [line.key if counts[line.key] == 1 else line.full_key for line in lines]
            self.repeated = frozenset([key for key, num in Counter(keys).items() if num > 1])
        self.keys = array("q", keys)
        self.labels = array("q", [line.label for line in lines])
        self.numbers = array("h", [line.number for line in lines])
        self.marks = array("h", marks)  # lines with which documents begin
        weak = [key for key, line in zip(keys, lines, strict=True) if line.is_weak]
        self.weak = frozenset(weak)

    @property
    def has_marks(self) -> bool:
        return len(self.marks) > 1

    def singles(self) -> set[int]:
        """Return the digests of lines and labels that the text has exactly once."""
        counts = Counter(self.keys)
        counts.update(self.labels)
        return {name for name, num in counts.items() if num == 1} - {0}


def read_lines(text: str) -> list[TextLine]:
    """Return the lines with text; none of a text with too many."""
    if text.count("\n") >= MAX_LINES:
        return []
    lines: list[TextLine] = []
    start = 0
    for raw in text.split("\n"):
        if stripped := raw.strip():
            at = start + len(raw) - len(raw.lstrip())
            if announced := _ANNOUNCES.match(stripped):
                lines.append(_line(announced[0].rstrip(), at))
                at, stripped = at + announced.end(), stripped[announced.end() :]
            lines.append(_line(stripped, at))
        start += len(raw) + 1
    return lines


def _line(text: str, start: int) -> TextLine:
    number, text_start = -1, start
    full_key = key = hash(text)
    match = _NUMBER.match(text)
    if match is not None and match.end() < len(text):
        number, text_start = int(match[1]), start + match.end()
        key = hash(text[match.end() :])
    colon = text.find(":", 1, _MAX_LABEL)
    if colon < 0:
        colon = text.find("：", 1, _MAX_LABEL)
    label = hash((text[:colon],)) if colon > 0 else 0
    is_weak = text[-1] in ":：>" or not _FOUR_LETTERS.match(text, 0, _MAX_LABEL)
    return TextLine(start, start + len(text), text_start, number, key, full_key, label, is_weak)
