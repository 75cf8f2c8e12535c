"""Digests of the lines of a text, so that traffic can be compared without keeping texts."""

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence, Set
from typing import NamedTuple

from ragboost.requests.citing.cited_words import WORD

MAX_LINES = 1024
_MAX_LABEL = 40
_MAX_SCORE_LINE = 80
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
# A score, which differs with each question. A line that holds nothing else but its name is known by
# the line beside it.
_SCORE = re.compile(r"(?<=[:=(：])[ *]{0,3}(?:-?\d{0,6}[.,]\d{1,18}(?![\w.,]*\d)|\d{1,3}(?=\s?%))")
_SCORE_LINE = re.compile(
    r"[(【\[]?[^\d\n:=(：]{0,40}[:=(：]" + _SCORE.pattern + r"[\s%*)\]】:：]{0,4}"
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
    is_score: bool = False  # nothing but a score and its name


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
    start, firsts, is_first = 0, set[int](), True
    for raw in text.split("\n"):
        if stripped := raw.strip():
            if is_first:
                firsts.add(len(lines))
            at = start + len(raw) - len(raw.lstrip())
            if announced := _ANNOUNCES.match(stripped):
                lines.append(_line(announced[0].rstrip(), at))
                at, stripped = at + announced.end(), stripped[announced.end() :]
            lines.append(_line(stripped, at))
        start, is_first = start + len(raw) + 1, not stripped
    _name_scores(text, lines, firsts)
    return lines


def _name_scores(text: str, lines: list[TextLine], firsts: Set[int]) -> None:
    """Call lines that hold a score alone after the line above them or, where they begin paragraphs,
    after the next line.

    Args:
        firsts: the lines that begin a paragraph.
    """
    scores = [i for i, line in enumerate(lines) if _is_score(text, line)]
    others = sorted({*range(len(lines))} - {*scores}) if scores else []
    most_are_first = 2 * len(firsts & {*scores}) > len(scores)
    for i in scores:
        beside, below = i - 1, bisect_right(others, i)
        is_first = most_are_first or i in firsts or lines[i].number >= 0
        if is_first and i + 1 not in firsts and below < len(others):
            beside = others[below]
        key = hash((lines[beside].key if beside >= 0 else 0, lines[i].key))
        lines[i] = lines[i]._replace(key=key, full_key=key, is_score=True)


def _is_score(text: str, line: TextLine) -> bool:
    is_short = line.end - line.text_start <= _MAX_SCORE_LINE
    return is_short and _SCORE_LINE.fullmatch(text, line.text_start, line.end) is not None


def _line(text: str, start: int) -> TextLine:
    number, text_start, full_key = -1, start, hash(text)
    match = _NUMBER.match(text)
    said = text
    if match is not None and match.end() < len(text):
        number, text_start = int(match[1]), start + match.end()
        said = text[match.end() :]
    if "." in said or "," in said or "%" in said:
        said = _SCORE.sub("", said, 1)
    key = hash(said)
    colon = text.find(":", 1, _MAX_LABEL)
    if colon < 0:
        colon = text.find("：", 1, _MAX_LABEL)
    label = hash((text[:colon],)) if colon > 0 else 0
    is_weak = text[-1] in ":：>" or not _FOUR_LETTERS.match(text, 0, _MAX_LABEL)
    return TextLine(start, start + len(text), text_start, number, key, full_key, label, is_weak)
