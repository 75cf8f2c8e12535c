"""Read dates, times and counts in their usual spellings, so that values can be compared.

Does not know where the values stand.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

from ragboost.requests.formats.frames.not_documents import is_ordered_name

M = TypeVar("M")
MAX_VALUE = 40
_MAX_NAME = 200
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_DOTTED = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")
# The months of seven languages by their first letters.
_MONTHS = (
    *("jan ene gen", "feb fév fev", "mar mär mrz", "apr avr abr", "may mai mag", "jun juin giu"),
    *("jul juil lug", "aug aoû ago", "sep set", "oct okt ott out", "nov", "dec dez déc dic"),
)
_MONTH_NUMBERS = {name: num for num, each in enumerate(_MONTHS, 1) for name in each.split()}
_MONTH = re.compile(rf"\b({'|'.join(_MONTH_NUMBERS)})[^\W\d_]{{0,7}}\b", re.IGNORECASE)
_NAMED_MONTH = rf"(?:{'|'.join(_MONTH_NUMBERS)})[^\W\d_]{{0,7}}\.?"
DATE = (
    r"(?:\d{4}[-/]\d\d?(?:[-/]\d\d?)?(?:[T ]\d{1,2}:\d\d(?::\d\d)?)?|\d{4}-Q\d"
    r"|\d{1,2}:\d\d(?::\d\d)?"
    rf"|\d{{1,2}}(?:\.|er|st|nd|rd|th)? (?:de |of )?{_NAMED_MONTH},? (?:de )?\d{{4}}"
    rf"|{_NAMED_MONTH} +(?:\d{{1,2}}(?:st|nd|rd|th)?,? )?\d{{4}}"
    rf"|{_NAMED_MONTH} +\d{{1,2}} \d\d:\d\d:\d\d|\d{{4}}年\d{{1,2}}月(?:\d{{1,2}}日)?"
    r"|\d{1,2}[./]\d{1,2}[./]\d{4}|(?:1[5-9]|20)\d\d(?=[:,])|1\d{9}(?:\d{3})?(?!\w)|T\+\d{1,6})"
)
"""The pattern of a date or a time; of years alone, those in front of a colon or a comma."""

_YEARS = (1900, 2200)
_PART = re.compile(r"[p.#§v ]{0,3}(\d{1,6}(?:\.\d{1,4}){0,3})(?:\s*(?:/|of|von)\s*\d{1,6})?")
_RANGE = re.compile(r"[Ll]?(\d{1,9})\s?[-\u2013:]\s?[Ll]?(\d{1,9})")
# A value as in "Step 5: the roof", and the name of a file as in `0003_users.sql`.
_NTH = re.compile(r"\W{0,3}([^\W\d_]{2,20}|[第§v])[\W_]{0,2}(\d{1,6})(?!\d)")
_LEADING = re.compile(r"(0\d{1,7})[-_. ]")
_LAST_WORD = re.compile(r"(?<![^\W\d_])([^\W\d_]{2,20}|[第§v])[\W_]{0,2}\Z")
# What has numbers within numbers, as in 3.1.
DOTTED = frozenset(("section", "subsection", "version", "release", "revision", "chapter", "v", "§"))
SIGNS = frozenset(("第", "§", "v", "art", "article", "section"))


def all_matches(match: Callable[[str], M | None], texts: Iterable[str]) -> list[M]:
    """Match each text; return nothing if one does not match, without a look at those behind it."""
    found = list[M]()
    for text in texts:
        if (matched := match(text)) is None:
            return []
        found.append(matched)
    return found


def numbers(value: object) -> tuple[float, ...]:
    """Return the numbers of a value, those of a time from the year or the hour down; of a list, as
    in `[start, end]`, those of its first element."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, int | float):
        return (value,)
    if not isinstance(value, str) or len(value) > MAX_VALUE:
        return ()
    value = _DOTTED.sub(r"\3 \2 \1", value)
    found = [float(number) for number in _NUMBER.findall(value)]
    month = _MONTH.search(value)
    if month is not None:
        found.insert(0, _MONTH_NUMBERS[month[1].lower()])
    year = next((number for number in found if _YEARS[0] <= number < _YEARS[1]), None)
    if year is not None:
        found.remove(year)
        found.insert(0, year)
    elif ":" in value:
        found = [0.0] * (3 - len(found)) + found
    return tuple(found)


def parts(value: object) -> tuple[int, ...]:
    """Return the numbers of a part, as of `5`, `p. 5`, `3.1` and `2/4`; empty for other values."""
    match = _PART.fullmatch(str(value)[:MAX_VALUE])
    return tuple(map(int, match[1].split("."))) if match is not None else ()


def succeed(values: Sequence[tuple[int, ...]]) -> bool:
    """Return True for parts of which each is the one before it or the next one."""
    return all(values) and all(
        a[:-1] == b[:-1] and len(a) == len(b) and 0 <= b[-1] - a[-1] <= 1
        for a, b in pairwise(values)
    )


def count_up(values: Sequence[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(values))


def are_named_parts(values: Sequence[object]) -> bool:
    """Return True for values like "Step 5", "Step 6"; `a.pdf#page=5`, `a.pdf#page=6`; `1-40`,
    `41-80`."""
    if not all(isinstance(value, str) and len(value) <= _MAX_NAME for value in values):
        return False
    texts = list(map(str, values))
    found = all_matches(_NTH.match, texts)
    if found and len({match[1].lower() for match in found}) == 1:
        return is_part(found[0][1]) and count_up([int(match[2]) for match in found])
    if ranges := all_matches(_RANGE.fullmatch, texts):
        return all(int(b[1]) == int(a[2]) + 1 for a, b in pairwise(ranges))
    return _are_alike_but_for_a_part(texts)


def are_named_files(names: Sequence[str]) -> bool:
    """Return True for names of files, without folders, that are the parts of one thing."""
    if found := all_matches(_LEADING.match, names):
        return count_up([int(match[1]) for match in found])
    return are_named_parts(names)


def is_part(label: str) -> bool:
    return label.lower() in SIGNS or is_ordered_name(label.lower())


def _are_alike_but_for_a_part(texts: Sequence[str]) -> bool:
    alike = itertools.takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False))
    prefix = "".join(chars[0] for chars in alike).rstrip("0123456789")
    label = _LAST_WORD.search(prefix)
    if label is None or not is_part(label[1]):
        return False
    rests = [text[len(prefix) :] for text in texts]
    ends = {rest.lstrip("0123456789") for rest in rests}
    if len(ends) > 1:
        return False
    end = len(ends.pop())
    digits = [rest[: len(rest) - end] for rest in rests]
    return all(map(str.isdecimal, digits)) and count_up(list(map(int, digits)))
