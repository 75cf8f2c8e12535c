"""Tell citations in brackets from an index, an interval or a list of numbers, by the text before.

Knows the text in front of a bracket. What it decides does not depend on which numbers stand there.
"""

import re
from collections.abc import Sequence

LONGEST_LEAD = 160  # characters before a bracket that are looked at
_MAX_NAME = 40
_MAX_WORDS = 120  # characters of four words
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

# The last word before numbers in brackets that are no citation, before several numbers, ...
_PLACES = frozenset(
    [
        *("page", "pages", "chapter", "step", "line", "figure", "table", "row", "column", "seite"),
        *("kapitel", "zeile", "schritt", "vector", "interval", "matrix", "array", "tuple"),
    ]
)
_COLLECTIONS = _ARRAYS | {
    *("vectors", "intervals", "lists", "range", "set", "point", "sequence", "numbers", "indices"),
    *("coordinates", "segment", "domain", "vektor", "intervall", "liste", "menge", "return"),
    *("is", "are", "was", "be", "equals", "equal", "gives", "returns", "yields", "print", "ist"),
}
# ... and two words together: `x in [1, 2]`.
_INSIDE = frozenset(("in", "of", "from", "to", "on", "over", "between", "by", "as", "and", "von"))
_MATHS = frozenset(("vector", "interval", "matrix", "array", "tuple", "range", "domain", "vektor"))
_OF_FORMULAS = re.compile(r"\\[A-Za-z]+\Z")
_OF_MATHS = re.compile(r"(?:向量|矩阵|区间|数组|列表)\Z")
_CITING = re.compile(
    r"cit|sourc|refer|docum|doc|passage|context|excerpt|snippet|chunk|evidence|quell|fuente"
    r"|来源|來源|出处|引用|参考|文档|文献|資料|出典",
    re.IGNORECASE,
)
_KEY = re.compile(r"[\"']([^\"'\n]{0,40})[\"'] ?\Z")
_ENDS = frozenset(".!?。！？…\"'”’»)）_|`%")  # what several may stand behind
_OPERATORS = frozenset("=<\\{@[")  # what no citation stands behind


def may_follow(before: str, *, is_many: bool) -> bool:
    """Return True if a citation in brackets may follow a text: of one number, or of several."""
    name = _LAST_NAME.search(before, max(0, len(before) - _MAX_NAME))
    if name is None or not name[0]:
        return _introduces(before, is_many=is_many)
    if name[0] in _ARRAYS or _NAME.fullmatch(before, name.start()) is not None:
        return False
    if before[name.start() - 1 : name.start()] == "\\":  # a command of a formula
        return False
    return not is_many or name[0].lower() not in _COLLECTIONS


def _introduces(before: str, *, is_many: bool) -> bool:
    text = before.rstrip()
    mark, gap, last = text[-1:], before[len(text) :], text[-2:-1]
    if not mark:
        return not is_many
    if mark in ":：":
        if key := _KEY.search(text, 0, len(text) - 1):
            return _CITING.search(key[1]) is not None
        return not is_many or any(map(_CITING.search, _last_words(text[:-1])))
    if "\n" in gap and not is_many:
        return True
    if mark.isalpha():
        if _OF_FORMULAS.search(text) or (is_many and _OF_MATHS.search(text)):
            return False
        return _follows(_last_words(text), is_many=is_many, is_line="\n" in gap)
    if mark in "*+-" and (not last or last.isspace()):  # an operator, unless the line begins so
        return not is_many and text[:-1].rstrip(" ")[-1:] in ("", "\n")
    if mark in "(（":
        return not is_many and not last.isalnum()
    if mark == ">" and last and last in "-=":
        return False
    if mark in _ENDS or mark in "*+" or mark.isdigit():
        return True
    return mark not in _OPERATORS and (not is_many or mark > "\x7f") and (mark != "$" or bool(gap))


def _last_words(text: str) -> list[str]:
    words = list[str]()
    for piece in reversed(text[-_MAX_WORDS:].split()[-4:]):
        word = piece.lstrip("(\"'*_").rstrip("*_")
        if not word.isalpha():
            break
        words.insert(0, word.lower())
        if word != piece:
            break
    return words


def _follows(words: Sequence[str], *, is_many: bool, is_line: bool) -> bool:
    last = words[-1] if words else ""
    if not last:  # a name with other characters, or a command of a formula
        return True
    if last in _PLACES:
        return False
    if not is_many or (any(map(_CITING.search, words)) and not is_line):
        return True
    if is_line or last in _COLLECTIONS or (len(last) == 1 and last.isascii() and last not in "ai"):
        return False
    before = words[:-1]
    return last not in _INSIDE or not any(len(w) == 1 or w in _MATHS for w in before)
