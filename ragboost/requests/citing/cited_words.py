"""Find the word for a document in front of a number: `Document 2`, `[doc2]`, `Sources: 2`.

Knows the words of a list's labels and what models call a document. Does not know which numbers a
list has.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# A word, with what is no letter but a part of it: vowel signs of Indic scripts and Thai, accents.
_SIGNS = (
    r"\u0300-\u036f\u0591-\u05c7\u0610-\u065f\u0670\u0900-\u0963\u0981-\u0ddf\u0e31-\u0e4e"
    r"\u0eb1-\u0ecd\u102b-\u103e\u17b4-\u17d3\u200c\u200d"
)
WORD = rf"(?>[^\W\d_]{{1,24}}(?:(?=\W)[{_SIGNS}]{{1,4}}[^\W\d_]{{0,24}}){{0,12}})"
ANDS = ("and", "or", "und", "oder", "et", "ou", "y", "o", "e", "и", "или", "&")
AND = re.compile(rf",? (?:{'|'.join(ANDS)}) ")

BRACKETS = {"[": "]", "【": "】", "［": "］"}
_SUFFIXES = ("s", "es", "e", "en", "n", "у", "а", "е", "ом", "ам", "ах", "ы", "ов")
_NUMERALS = ("no.", "nr.", "n°", "number", "numéro", "numero", "número", "nummer", "номер")
_GAPS = (
    *(" ", "\u00a0", "\u202f", " #", "#", " №", "№ ", " **", " *", " _", "** ", "* ", "_ ", ". "),
    *("-", "\n", " (", *(f" {each} " for each in _NUMERALS)),
)
_COLONS = (":", ": ", "：", "： ", ":** ", ":**", "：** ", "：**")  # behind a word of the line
_KEYS = ('":', '": ')  # of JSON
_LONGEST_LEAD = 80  # characters of a word of a document and what stands behind it
# Words that models write for a numbered document, whichever of them its label has.
SYNONYMS = (
    *("document", "doc", "source", "passage", "context", "excerpt", "reference", "ref", "snippet"),
    *("chunk", "citation", "webpage", "dokument", "quelle", "documento", "fuente", "fonte"),
    *("документ", "источник", "文档", "来源", "资料", "資料", "文書", "出典", "문서", "출처"),
    *("文件", "dok", "extrait", "bron", "bronn", "documenti", "fonti"),
    *(f"dokument{ending}" for ending in ("u", "y", "ie", "em", "ów", "om", "ach", "ami")),
    *("документами", "источники", "источником", "источниками"),
)
UNITS = tuple(f" {unit}" for unit in ("pages", "copies", "times", "million", "billion", "Seiten"))


class Word(NamedTuple):
    """A word of a document before a number, with what stands between both."""

    gap: str
    is_list: bool = False  # several numbers may follow


@dataclass(frozen=True)
class DocumentWords:
    """Words of one list.

    Args:
        gaps: further texts that may stand between word and number.
        has_colons: numbers behind `Sources:` are citations, too.
    """

    words: tuple[str, ...]
    gaps: tuple[str, ...] = ()
    has_colons: bool = False

    @cached_property
    def word_ends(self) -> frozenset[str]:
        """Return the characters that may stand between such a word and a number, and its own."""
        gaps = (*_GAPS, *self.gaps, *_COLONS, *_KEYS, *self.words)
        ends = {end for gap in gaps for end in gap[-1:]}
        return frozenset(ends | {end.swapcase() for end in ends})

    @cached_property
    def _stems(self) -> frozenset[str]:
        return frozenset(map(str.lower, self.words))

    @cached_property
    def _signs(self) -> tuple[str, ...]:
        """Words of a script without capitals, which may stand in a row of others."""
        return tuple(word for word in self.words if word.lower() == word.upper())

    @cached_property
    def _lead(self) -> re.Pattern[str]:
        """Pattern of a word and what stands between it and a number, read backwards."""
        gaps = sorted({*_GAPS, *self.gaps, *_COLONS, *_KEYS, ""}, key=len, reverse=True)
        gap = "|".join(re.escape(gap[::-1]) for gap in gaps)
        return re.compile(rf"({gap})((?:[^\W\d_]|[{_SIGNS}]){{1,48}})", re.IGNORECASE)

    def before(self, text: str, start: int) -> "Word | None":
        """Return the word of a document in front of the number at an offset."""
        if not self.words or text[start - 1] not in self.word_ends:
            return None
        lead = self._lead.match(text[max(0, start - _LONGEST_LEAD) : start][::-1])
        if lead is None:
            return None
        gap, name, at = lead[1][::-1].lower(), lead[2][::-1], start - lead.end()
        stem, before = name.lower(), text[at - 1 : at] if at else ""
        is_plain = gap not in _COLONS and gap not in _KEYS
        if self._signs and stem.endswith(self._signs):
            return Word(gap, is_list=True) if is_plain else None
        if (ending := self._ending(stem)) is None:
            return None
        if before and before in BRACKETS and gap in ("", ":", "：") and not ending:
            return Word(gap)  # `[citation:2]`, `[doc2]`
        if gap in _KEYS:
            return Word(gap) if self.has_colons and before == '"' and not ending else None
        if gap in _COLONS:  # at the beginning of a line
            is_first = not before or before.isspace() or before in "([*_>"
            is_first &= not (before == " " and text[at - 2 : at - 1].isalpha())
            is_list = self.has_colons and is_first and ending in ("", "s")
            return Word(gap, is_list=True) if is_list else None
        is_inside = before.isalnum() or (before != "" and before in "/.")
        is_inside |= before == "_" and (text[at - 2 : at - 1].isalnum() or at < 2)
        is_inside |= gap == "-" and not name[0].isupper()  # maybe a file's name
        return Word(gap, is_list=bool(ending)) if gap and not is_inside else None

    def _ending(self, word: str) -> str | None:
        """Return what a word has behind one of a document; None if it is none."""
        if word in self._stems:
            return ""
        ends = (end for end in _SUFFIXES if word.endswith(end))
        return next((end for end in ends if word[: -len(end)] in self._stems), None)


def may_end(word: Word, behind: str, *, is_many: bool) -> bool:
    """Return False if what stands behind the numbers tells that they are no documents'."""
    if word.gap == " (":  # `documents (4)` are counted
        return behind[:1] == ")" and (is_many or not word.is_list)
    if word.gap == "\n":  # else maybe the next item, or what the next line counts
        return behind[:1] != "" and behind[0] in ",;:)]'’"
    if word.gap == "-":
        return behind[:1] not in ("-", "/", ".") or behind[1:2].isspace()
    if word.gap in _COLONS:  # `Source: 4 May 1999`
        return behind[:1] != " " or not behind[1:2].isalnum() or AND.match(behind) is not None
    return not behind.startswith(UNITS)
