"""Citations of numbered documents in a text, and their replacement by other numbers.

Knows one text, which may arrive in pieces. Does not know requests, responses, or who wrote it.

| in the text                                  | mapped                                     |
|----------------------------------------------|--------------------------------------------|
| `[2]`, `[1, 3]`, `[1][2]`, `[2, p. 4]`       | yes, if all numbers are the list's         |
| `Document 2`, `[document 2]`, `文档2`        | yes: the word of the list's labels         |
| `Source 2`, `[doc 2]`, `Sources: 2, 3`       | in answers, if labels have such a word     |
| `Documents 1, 2 and 3`                       | yes, as a whole                            |
| `[7]` of four documents, `[02]`              | no                                         |
| `Documents 1-3`, `[1-3]`, `Document 2.5`     | no: a range is no range in another order   |
| `a[1]`, `x = [1, 2]`, `[[1], [2]]`, `page [1]` | no: an index, numbers, another thing     |
| code: backticks, fences, `<code>`, indented  | no                                         |

Only digits are replaced, by numbers of the same list, and what is a citation does not depend on
which of them it has. So the map of the inverse permutation restores every text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

from ragboost.requests.citing.bracketed_numbers import LONGEST_LEAD, may_follow
from ragboost.requests.citing.cited_words import (
    AND,
    ANDS,
    BRACKETS,
    SYNONYMS,
    UNITS,
    DocumentWords,
    Word,
    may_end,
)

_TOKEN = re.compile(r"\n[ \t>]{0,16}[`~]{0,32}|`{1,32}|</?(?:code|pre)[ >]|[0-9]{1,7}")
_ITEM = re.compile(r"[-*+•]|[0-9]{1,3}[.)]")  # of a list, whose paragraphs are indented
_MAX_NUMBERS = 64  # in one pair of brackets
_CONTEXT = LONGEST_LEAD + 32  # characters before a number that are looked at
_SPACES = ("", " ")
_COMMAS = (",", ";", "、", "，", "；")
_SEPARATORS = frozenset(
    [
        *map("".join, product(_SPACES, _COMMAS, _SPACES)),
        *(f"{comma} {word} " for comma in ("", ",") for word in ANDS),
        *("和", "与", "及", "或", "と", "や"),
    ]
)
# Behind a number and before another one, these make a range or a decimal of both.
_RANGES = (
    *(".", "/", "...", "..", "…", "至", "到", "から"),
    *map("".join, product(_SPACES, ("-", "–", "—", "~", "〜"), _SPACES)),
    *(f" {word} " for word in ("to", "through", "thru", "until", "bis", "à", "a", "al", "до")),
)
_RANGE = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(_RANGES, key=len)))})[0-9]")
_LONGEST_RANGE = max(map(len, _RANGES))
_NUMBER = r"[0-9]{1,6}(?![0-9])"
_NUMBERS = re.compile(
    rf"{_NUMBER}(?:(?:{'|'.join(map(re.escape, _SEPARATORS))}){_NUMBER}){{0,{_MAX_NUMBERS - 1}}}"
)
_LONGEST_SEPARATOR = max(map(len, _SEPARATORS))
_EACH_NUMBER = re.compile(r"[0-9]+")
_DIGITS = frozenset("0123456789")
# A place in the document that is cited, behind its number: `[2, p. 4]`.
_LOCATOR = re.compile(
    r"[,;:] ?(?:pp?|pages?|pg|S|Seiten?|secs?|sections?|§|lines?|ll?|ch|chapters?|para|paragraphs?"
    r"|figs?|figure|tables?|art|article|第)\b\.? ?[^\[\]【】［］\n]{0,24}"
)
_LONGEST_LOCATOR = 40
_LAST_BRACKET = re.compile(rf"[\]】］](?:{'|'.join(map(re.escape, _SEPARATORS))})?\s{{0,8}}\Z")
_NEAR = 1 + _LONGEST_SEPARATOR + 8  # characters that it can match
# Behind a number: it is a part of a word or of a file's name, or counts something.
_PART = re.compile(r"[A-Za-z0-9$]|[_.][^\W_]")
_UNFINISHED = frozenset(
    text[:end] for text in (*_SEPARATORS, *_RANGES, *UNITS, "_") for end in range(len(text) + 1)
)  # what more text may make something else
_LONGEST_BEHIND = max(map(len, _UNFINISHED)) + 1


class OtherLists(NamedTuple):
    """Other lists of a conversation with the same numbers."""

    has_brackets: bool = False  # `[1]` may be theirs
    words: frozenset[str] = frozenset()  # of their labels, in lower case

    def joined(self, other: "OtherLists") -> "OtherLists":
        return OtherLists(self.has_brackets or other.has_brackets, self.words | other.words)


ALONE = OtherLists()


class NumberEdit(NamedTuple):
    """A replacement of the digits between two offsets of a text."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class CitationMap:
    """Other numbers for the citations of one list.

    Args:
        numbers: the new number for each number of the list.
        words: of the labels, without a plural's ending.
        gaps: further texts that may stand between word and number.
        has_brackets: numbers in brackets are this list's; else only those behind words.
        has_colons: numbers behind `Sources:` are citations, too.
        is_alone: no other list has documents, whatever a model calls them.
    """

    numbers: dict[str, str]
    words: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    has_brackets: bool = True
    has_colons: bool = False
    is_alone: bool = True

    @cached_property
    def inverse(self) -> "CitationMap":
        numbers = {new: number for number, new in self.numbers.items()}
        return replace(self, numbers=numbers)

    @cached_property
    def of_answers(self) -> "CitationMap":
        """The map for what a model wrote, which knows more words for a document."""
        if not self.is_alone:
            return self
        has_word = any(word.lower().removesuffix("s") in SYNONYMS for word in self.words)
        words = (*self.words, *SYNONYMS) if has_word or not self.words else self.words
        return replace(self, words=words, has_colons=True)

    def beside(self, others: "OtherLists") -> "CitationMap | None":
        """Return what still maps where other lists have the same numbers; None if nothing does."""
        words = tuple(word for word in self.words if word.lower() not in others.words)
        if not others.has_brackets and words == self.words:
            return self
        return replace(self, words=words, has_brackets=False, is_alone=False) if words else None

    @cached_property
    def document_words(self) -> DocumentWords:
        return DocumentWords(self.words, self.gaps, has_colons=self.has_colons)

    def edits(self, text: str) -> list[NumberEdit]:
        """Return the replacements in a whole text."""
        if not any(map(text.__contains__, self.numbers)):
            return []
        scanner = CitationScanner(self)
        return scanner.feed(text) + scanner.finish()

    def apply(self, text: str) -> str:
        """Return the text with the other numbers."""
        return replaced(text, self.edits(text))


def replaced(text: str, edits: Sequence[NumberEdit], *, start: int = 0) -> str:
    """Return a text with replacements; it begins at the offset `start` of theirs.

    A number that began before the text is dropped from it.
    """
    end, pieces, at = start + len(text), list[str](), start
    for edit in edits:
        if edit.end <= start or edit.start >= end:
            continue
        pieces += text[at - start : max(edit.start, start) - start], ""
        if edit.start >= start:
            pieces[-1] = edit.new
        at = min(edit.end, end)
    return "".join((*pieces, text[at - start :]))


@dataclass
class CitationScanner:
    """Finds the citations of a text that arrives in pieces.

    base           at             released                  end of what has arrived
    |  context      |  scanned     |  digits that may be     |
    |               |  next        |  part of a citation     |

    Nothing but digits is replaced, so that text is held back from a digit on and only until the
    text behind it decides, after at most `_MAX_NUMBERS` numbers.
    """

    map: CitationMap
    released: int = 0  # offset up to which the text and its replacements are final
    _buffer: str = "\n"  # as if a line had ended before the text
    _base: int = -1
    _at: int = 0  # in the buffer
    _fence: str = ""  # that opened a block of code
    _is_first: bool = False  # the fence opens the text
    _is_json: bool = False  # and holds JSON, which is read as JSON without a fence is
    _ticks: int = 0  # that opened code inside a line
    _is_tagged: bool = False  # inside `<code>`
    _is_deep: bool = False  # the line is indented
    _is_indented: bool = False  # and code
    _is_item: bool = False  # indented lines belong to an item of a list
    _was_blank: bool = True  # the line before
    _line: int = -1  # where the text of the line begins
    _head: str = ""  # of the line, once its beginning is not in the buffer any more
    _bracket_end: int = -1  # of the last citation in brackets
    _other_end: int = -1  # of the last numbers in brackets that are none
    _edits: list[NumberEdit] = field(default_factory=list)

    def feed(self, piece: str) -> list[NumberEdit]:
        """Add a piece of the text; return the replacements that are final now."""
        self._buffer += piece
        return self._scan(is_end=False)

    def finish(self) -> list[NumberEdit]:
        """End the text; return the last replacements."""
        return self._scan(is_end=True)

    def _scan(self, *, is_end: bool) -> list[NumberEdit]:
        buffer, self._edits = self._buffer, []
        held = len(buffer)
        while (token := _TOKEN.search(buffer, self._at)) is not None:
            start, end = token.span()
            if end == len(buffer) and not is_end:
                self._at = start
                held = start if self._may_cite(start) else held
                break
            if buffer[start] == "\n":
                self._mark_line(token[0], end)
            elif buffer[start] == "<":
                self._is_tagged = token[0][1] != "/"
            elif buffer[start] == "`":
                self._mark_ticks(token[0])
            elif self._may_cite(start):
                stop = self._cite(start, end, is_end=is_end)
                if stop is None:
                    self._at = held = start
                    break
                end = stop
            self._at = end
        else:
            tag = buffer.rfind("<", max(self._at, len(buffer) - len("</code>")))
            self._at = len(buffer) if tag < 0 or is_end else tag
        self.released = self._base + held
        cut = self._at - _CONTEXT
        if cut > _CONTEXT:
            if self._line < self._base + cut:
                self._head = self._line_head()
            self._buffer, self._base, self._at = buffer[cut:], self._base + cut, _CONTEXT
        return self._edits

    def _mark_ticks(self, token: str) -> None:
        if not self._fence and self._ticks in (0, len(token)):
            self._ticks = 0 if self._ticks else len(token)

    def _mark_line(self, token: str, end: int) -> None:
        """Note where blocks of code begin or end; an unclosed backtick ends with its line."""
        behind, head = self._buffer[end : end + 1], self._line_head()
        is_blank = not head.strip()
        self._is_json |= self._is_first and head.strip().lower() == "json"
        self._is_first = False
        if _ITEM.match(head):
            self._is_item = True
        elif not is_blank and not self._is_deep and self._was_blank:
            self._is_item = False
        is_code = self._is_indented or (is_blank and not self._is_item)
        self._is_deep = token.startswith(("\n    ", "\n\t")) and ">" not in token
        self._is_indented = is_code and (self._is_deep or behind in ("", "\n", "\r"))
        self._was_blank, self._line, self._head = is_blank, self._base + end, ""
        self._ticks, mark = 0, token[1:].lstrip(" \t>")
        if self._fence:
            is_closer = mark.startswith(self._fence) and behind in ("", " ", "\t", "\r", "\n")
            self._fence = "" if is_closer else self._fence
            self._is_json &= not is_closer
        elif len(mark) > 2 and mark == mark[0] * len(mark):
            self._fence, start = mark, end - len(token)
            self._is_first = self._base + start < 64 and not self._buffer[:start].strip()
        elif mark.startswith("`"):
            self._ticks = len(mark)

    def _line_head(self) -> str:
        at = self._line - self._base
        return self._head or self._buffer[at : at + 6].partition("\n")[0]

    def _may_cite(self, start: int) -> bool:
        """Return True for a digit behind what introduces a citation."""
        buffer = self._buffer
        if (
            (self._fence and not self._is_json)
            or self._ticks
            or self._is_tagged
            or self._is_indented
        ):
            return False
        if start < 1 or buffer[start : start + 1] not in _DIGITS:
            return False
        if buffer[start - 1] in BRACKETS:
            return self.map.has_brackets
        return self._word(start) is not None

    def _cite(self, start: int, end: int, *, is_end: bool) -> int | None:
        """Map the citation whose first number is here; return the end of what was looked at, None
        if the text behind is needed."""
        buffer = self._buffer
        if buffer[start - 1] in BRACKETS:
            return self._cite_in_brackets(start, end, is_end=is_end)
        numbers, word = _NUMBERS.match(buffer, start), self._word(start)
        if numbers is None or word is None:  # of too many digits
            return end
        behind = buffer[numbers.end() : numbers.end() + _LONGEST_BEHIND]
        spans = [each.span() for each in _EACH_NUMBER.finditer(buffer, *numbers.span())]
        is_cut = len(behind) < _LONGEST_BEHIND and not is_end
        if is_cut and (behind in _UNFINISHED or (len(spans) > 1 and len(behind) < 2)):
            return None
        is_decimal = behind[:1] == "." and behind[1:2] in _DIGITS
        if not is_decimal and _RANGE.match(buffer, numbers.end()):
            return numbers.end()
        if is_decimal or _PART.match(behind):
            spans.pop()
        if not may_end(word, behind, is_many=len(spans) > 1):
            return numbers.end()
        between = buffer[start : numbers.end()]
        is_list = word.is_list or any(f" {each} " in between for each in ANDS)
        is_list = is_list or AND.match(behind) is not None or not behind[:2].strip()[:1].isalnum()
        for span in spans if is_list else spans[:1]:
            if not self._replace(*span):
                break
        return numbers.end()

    def _cite_in_brackets(self, start: int, end: int, *, is_end: bool) -> int | None:
        buffer, numbers = self._buffer, _NUMBERS.match(self._buffer, start)
        if numbers is None:  # of too many digits
            return end
        closer, stop, at = BRACKETS[buffer[start - 1]], numbers.end(), start - 1
        behind = buffer[stop : stop + _LONGEST_LOCATOR]
        is_cut = len(behind) < _LONGEST_LOCATOR and not is_end
        if not behind.startswith(closer):
            length = behind.find(closer)
            is_open = any(each.startswith(behind) for each in _SEPARATORS)
            is_open |= behind[:1] in (",", ";", ":") and not {"\n", "["}.intersection(behind)
            if length < 0 and is_cut and is_open:
                return None
            if length < 0 or not _LOCATOR.fullmatch(behind, 0, length):
                return end
            stop += length
        if stop + 2 > len(buffer) and not is_end:
            return None
        if is_double := buffer[at - 1 : at] == buffer[at] and at > 0:  # `[[1]]`
            at -= 1
        spans = [each.span() for each in _EACH_NUMBER.finditer(buffer, *numbers.span())]
        is_one = len(spans) == 1 and buffer[stop + 1 : stop + 2] == closer
        if (is_double and not is_one) or not self._opens(at, is_many=len(spans) > 1):
            self._other_end = self._base + stop + 1
            return numbers.end()
        self._bracket_end = self._base + stop + 1 + is_double
        if all(buffer[s:e] in self.map.numbers for s, e in spans):
            for span in spans:
                self._replace(*span)
        return numbers.end()

    def _replace(self, start: int, end: int) -> bool:
        number = self._buffer[start:end]
        new = self.map.numbers.get(number)
        if new is not None and new != number:
            self._edits.append(NumberEdit(self._base + start, self._base + end, new))
        return new is not None

    def _opens(self, at: int, *, is_many: bool) -> bool:
        """Return True for a bracket that is not an index's, a link's, or another list's."""
        buffer = self._buffer
        before = buffer[max(0, at - LONGEST_LEAD) : at]
        if (bracket := _LAST_BRACKET.search(before, max(0, len(before) - _NEAR))) is not None:
            end = self._base + at - len(before) + bracket.start() + 1
            if end == self._other_end or end == self._bracket_end or before[-1] == bracket[0]:
                return end == self._bracket_end
        return may_follow(before, is_many=is_many)

    def _word(self, start: int) -> Word | None:
        return self.map.document_words.before(self._buffer, start)
