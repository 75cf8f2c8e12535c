"""Citations of numbered documents in a text, and their replacement by other numbers.

Knows one text, which may arrive in pieces. Does not know requests, responses, or who wrote it.

| in the text                                  | mapped                                     |
|----------------------------------------------|--------------------------------------------|
| `[2]`, `[1, 3]`, `[1][2]`, `lease[2]`        | yes, if all numbers are the list's         |
| `Document 2`, `[document 2]`, `文档2`        | yes: the word of the list's labels         |
| `Documents 1, 2 and 3`                       | yes, a plural                              |
| `[7]` of four documents, `[02]`              | no                                         |
| `Documents 1-3`, `[1-3]`, `Document 2.5`     | no: a range is no range in another order   |
| `a[1]`, `row_ids[2]`, `list[1]`, `[see][1]`  | no: an index, or a link                    |
| between backticks, in a fenced block         | no                                         |

Only digits are replaced, by numbers of the same list, and what is a citation does not depend on
which of them it has. So the map of the inverse permutation restores every text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import NamedTuple

# A word, with what is no letter but a part of it: vowel signs of Indic scripts and Thai, accents.
_SIGNS = (
    r"\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0670\u0900-\u0963\u0981-\u0ddf\u0e31-\u0e4e"
    r"\u0eb1-\u0ecd\u102b-\u103e\u17b4-\u17d3\u200c\u200d"
)
WORD = rf"(?>[^\W\d_]{{1,24}}(?:(?=\W)[{_SIGNS}]{{1,4}}[^\W\d_]{{0,24}}){{0,12}})"
_TOKEN = re.compile(r"\n[ \t>]{0,16}[`~]{0,32}|`{1,32}|[0-9]{1,7}")
_MAX_DIGITS = 6
_MAX_NUMBERS = 64  # in one pair of brackets
_CONTEXT = 96  # characters before a number that are looked at
_MAX_WORD = 40
_SPACES = ("", " ")
_COMMAS = (",", ";", "、", "，", "；")
_ANDS = ("and", "or", "und", "oder", "et", "ou", "y", "o", "e", "и", "или", "&")
_SEPARATORS = frozenset(
    [
        *map("".join, product(_SPACES, _COMMAS, _SPACES)),
        *(f"{comma} {word} " for comma in ("", ",") for word in _ANDS),
        *("和", "与", "及", "或", "と", "や"),
    ]
)
# Behind a number and before another one, these make a range or a decimal of both.
_RANGES = (
    *(".", "...", "..", "…", "至", "到", "から"),
    *map("".join, product(_SPACES, ("-", "–", "—", "~", "〜"), _SPACES)),
    *(f" {word} " for word in ("to", "through", "thru", "until", "bis", "à", "a", "al", "до")),
)
_RANGE = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(_RANGES, key=len)))})[0-9]")
_LONGEST_RANGE = max(map(len, _RANGES))
_NUMBER = rf"[0-9]{{1,{_MAX_DIGITS}}}(?![0-9])"
_NUMBERS = re.compile(
    rf"{_NUMBER}(?:(?:{'|'.join(map(re.escape, _SEPARATORS))}){_NUMBER}){{0,{_MAX_NUMBERS - 1}}}"
)
_LONGEST_SEPARATOR = max(map(len, _SEPARATORS))
_EACH_NUMBER = re.compile(r"[0-9]+")
_DIGITS = frozenset("0123456789")
_BRACKETS = {"[": "]", "【": "】"}
_SUFFIX = "(?P<plural>s|es|e|en|n)?"
_GAPS = (" ", "\u00a0", "\u202f", " #", "#", " No. ", " №", "№ ")
# The last name before a bracket that is an index into it.
_NAME = re.compile(
    r"(?:(?<=[^\W\d_]\.)|[A-Za-z0-9_$]*[_$]|[A-Za-z]*[a-z][A-Z]|[A-Za-z]+[0-9])[A-Za-z0-9_$]*"
    r"|[A-Za-z]"
)
_LAST_NAME = re.compile(r"[A-Za-z0-9_$]{0,40}\Z")
_ARRAYS = frozenset(
    [
        *("arr", "array", "args", "argv", "buf", "buffer", "idx", "index", "items", "list", "lst"),
        *("mat", "matrix", "nums", "ptr", "row", "rows", "tuple", "values", "vals", "vec"),
    ]
)


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
    """

    numbers: Mapping[str, str]
    words: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()

    @cached_property
    def inverse(self) -> "CitationMap":
        numbers = {new: number for number, new in self.numbers.items()}
        return CitationMap(numbers, self.words, self.gaps)

    @cached_property
    def longest_word(self) -> int:
        """Return the characters of the longest word with what may stand between it and a number."""
        longest = max(map(len, (*_GAPS, *self.gaps)))
        return max(map(len, self.words), default=0) + len(" es") + longest

    @cached_property
    def word_pattern(self) -> re.Pattern[str] | None:
        """Pattern of the text in front of a number that a word of the labels introduces."""
        if not self.words:
            return None
        gaps = "|".join(map(re.escape, sorted({*_GAPS, *self.gaps}, key=len, reverse=True)))
        latin = [re.escape(word) for word in self.words if word.lower() != word.upper()]
        others = [re.escape(word) for word in self.words if word.lower() == word.upper()]
        forms = [rf"(?<![\w/.])(?:{'|'.join(latin)}){_SUFFIX}(?:{gaps})"] if latin else []
        forms += [rf"(?:{'|'.join(others)})(?P<any>)(?:{gaps})?"] if others else []
        return re.compile(rf"(?:{'|'.join(forms)})\Z", re.IGNORECASE)

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
    _ticks: int = 0  # that opened code inside a line
    _list_end: int = -1  # of the last cited number that others may follow
    _bracket_end: int = -1  # of the last numbers in brackets
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
            if buffer[start] not in _DIGITS:
                self._mark_code(token[0], buffer[end : end + 1])
            elif self._may_cite(start):
                stop = self._cite(start, end, is_end=is_end)
                if stop is None:
                    self._at = held = start
                    break
                end = stop
            self._at = end
        else:
            self._at = len(buffer)
        self.released = self._base + held
        cut = self._at - _CONTEXT
        if cut > _CONTEXT:
            self._buffer, self._base, self._at = buffer[cut:], self._base + cut, _CONTEXT
        return self._edits

    def _mark_code(self, token: str, behind: str) -> None:
        """Note where code begins or ends; an unclosed backtick ends with its line."""
        if token[0] != "\n":
            if not self._fence and self._ticks in (0, len(token)):
                self._ticks = 0 if self._ticks else len(token)
            return
        self._ticks, mark = 0, token[1:].lstrip(" \t>")
        if self._fence:
            is_closer = mark.startswith(self._fence) and behind in ("", " ", "\t", "\r", "\n")
            self._fence = "" if is_closer else self._fence
        elif len(mark) > 2 and mark == mark[0] * len(mark):
            self._fence = mark
        elif mark.startswith("`"):
            self._ticks = len(mark)

    def _may_cite(self, start: int) -> bool:
        """Return True for a digit behind what introduces a citation."""
        buffer = self._buffer
        if self._fence or self._ticks or start < 1 or buffer[start : start + 1] not in _DIGITS:
            return False
        return self._opens(start) or self._word(start) is not None or self._continues(start)

    def _cite(self, start: int, end: int, *, is_end: bool) -> int | None:
        """Map the citation whose first number is here; return the end of what was looked at, None
        if the text behind is needed."""
        if self._opens(start):
            return self._cite_in_brackets(start, end, is_end=is_end)
        buffer = self._buffer
        behind = buffer[end : end + _LONGEST_RANGE + 1]
        is_cut = len(behind) <= _LONGEST_RANGE and not is_end
        if is_cut and any(each.startswith(behind) for each in _RANGES):
            return None
        if behind[:1].isascii() and (behind[:1].isalnum() or behind[:1] in ("_", "$")):
            return end
        if _RANGE.match(buffer, end):
            return end
        if not self._replace(start, end):
            return end
        word = self._word(start)
        is_list = (
            word is None or word.groupdict().get("plural") or word.groupdict().get("any") == ""
        )
        self._list_end = self._base + end if is_list else -1
        return end

    def _cite_in_brackets(self, start: int, end: int, *, is_end: bool) -> int | None:
        buffer, numbers = self._buffer, _NUMBERS.match(self._buffer, start)
        if numbers is None:  # of too many digits
            return end
        behind = buffer[numbers.end() : numbers.end() + _LONGEST_SEPARATOR + 1]
        if behind[:1] != _BRACKETS[buffer[start - 1]]:
            is_cut = len(behind) <= _LONGEST_SEPARATOR and not is_end
            is_open = is_cut and any(each.startswith(behind) for each in _SEPARATORS)
            return None if is_open else end
        self._bracket_end = self._base + numbers.end() + 1
        spans = [each.span() for each in _EACH_NUMBER.finditer(buffer, *numbers.span())]
        if not all(buffer[s:e] in self.map.numbers for s, e in spans):
            return end
        for span in spans:
            self._replace(*span)
        return numbers.end()

    def _replace(self, start: int, end: int) -> bool:
        number = self._buffer[start:end]
        new = self.map.numbers.get(number)
        if new is not None and new != number:
            self._edits.append(NumberEdit(self._base + start, self._base + end, new))
        return new is not None

    def _opens(self, start: int) -> bool:
        """Return True behind a bracket that is not an index's and not a link's."""
        buffer, at = self._buffer, start - 1
        if buffer[at] not in _BRACKETS:
            return False
        if buffer[at - 1 : at] == "]" and at:
            return self._base + at == self._bracket_end
        name = _LAST_NAME.search(buffer, max(0, at - _MAX_WORD), at)
        if name is None or not name[0]:
            return True
        return name[0] not in _ARRAYS and _NAME.fullmatch(buffer, name.start(), at) is None

    def _word(self, start: int) -> re.Match[str] | None:
        pattern = self.map.word_pattern
        if pattern is None:
            return None
        return pattern.search(self._buffer, max(0, start - self.map.longest_word), start)

    def _continues(self, start: int) -> bool:
        at = self._list_end - self._base
        if self._list_end < 0 or not 0 <= at < start <= at + 8:
            return False
        return self._buffer[at:start] in _SEPARATORS
