"""Tell from the beginnings of texts, from the names of files, or from what stands above a list that
one text follows the other.

Does not know the fields of a list's elements.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from ragboost.requests.formats.frames.not_documents import (
    DOCUMENT_NAMES,
    singular,
    split_name,
    word_set,
)
from ragboost.requests.formats.frames.sequences.fields import SPEAKING
from ragboost.requests.formats.frames.sequences.values import (
    DATE,
    DOTTED,
    all_matches,
    are_named_files,
    are_named_parts,
    count_up,
    is_part,
    numbers,
)

# Names of a list, or of what holds it, whose elements come one after the other.
_SEQUENCES = word_set(
    "act agenda book canto captions chapter essay lecture novel poem report scene section speech "
    "story tei changelog chat chatlog chronology conversation correspondence dialog dialogue "
    "diary events gitlog history interview itinerary journal log logs lyrics messages minutes "
    "playlist recording replies schedule screenplay subtitles thread timeline "
    "transcript transcription turns verlauf protokoll tagebuch historique historial "
    "对话 对话历史 聊天记录 历史 日志 会話 履歴"
)
_HOLDER = re.compile(r"<([^\W\d][\w.:-]{0,63})(?:\s[^<>]*)?>(?=[ \t]*\r?\n|[ \t]*\Z)")
_HEADLINE = re.compile(r"(?:\A|\n)([^\n]*[^\s])\s*\Z")
_HEADING = re.compile(r"#|\*\*|.*[:：)）*]\Z")
_SEQUENCE_ENDS = ("verlauf", "protokoll", "记录", "記錄", "对话", "日志", "记录如下", "对话如下")
_DAYS = "(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_LINK = re.compile(
    rf"{_DAYS}\b[^\n]{{0,20}}:|commit [0-9a-f]{{7,40}}\b"
    r"|From: [^\n]+\n(?:To|Subject|Date): |@@ -\d|Thought:|(?:[-*] )?\[[ xX]\] "
)
_FIRST = re.compile(r"(?:\W{0,3}(?:At |The )?[Ff]irst(?:ly)?|To begin with)\b[ ,:]|首先|最初")
_NEXT = re.compile(
    r"\W{0,3}(?:(?:The )?(?:[Ss]econd|[Tt]hird|[Ff]ourth|[Ff]ifth|[Ll]ast)|Then|Next|After|Finally"
    r"|Lastly|\w+ \w+ later)(?:ly|wards)?\b[ ,:]|其次|然后|接着|随后|最后"
)
_BEGINNING = 160  # characters of a text that are read
# At the beginning of a text: `Ann: ...`, `**Ms. Lee:** ...`, `@ann ...`.
_SPOKEN = re.compile(
    r"[*_\[]{0,3}((?:(?:Mr|Ms|Mrs|Dr|Prof|Frau|Herr|Mme)\.? )?[^\W\d_][\w.'-]{0,23})[*_\]]{0,3}"
    r"[:：][*_]{0,2}\s|<?@([\w.-]{1,24})>?[:,]?\s"
)
# A date or a time, the words before it, which are the same in all texts, and a weekday.
_DATED = re.compile(
    r"[\W_]{0,4}(?P<lead>(?:[^\W\d_]{1,14}[.,:*_]{0,4} ){0,3})"
    rf"(?:{_DAYS},? )?(?P<date>{DATE})",
    re.IGNORECASE,
)
_WORDS = "one two three four five six seven eight nine ten eleven twelve".split()  # noqa: SIM905
_ROMAN = ["i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix", "x", "xi", "xii"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# A label and a count behind it: `Appendix A.`, `Stage two:`, `In [3]:`, `S01E03:`, `## [1.2.0]`,
# `3 Methods`, `(b)`.
_COUNTED = re.compile(
    r"(?P<open>[\W_]{0,4})(?:(?P<label>(?![ivx]+\b)[^\W\d_]{2,20}|p|s\d\d?e)\.?"
    r"(?: (?:no|nr)\b\.?)?[\W_]{0,2})?"
    rf"(?P<value>\d{{1,6}}(?:\.\d{{1,3}}){{0,3}}|[a-z]|{'|'.join((*_WORDS, *_ROMAN))})(?!\w|\.\w)"
    r"(?P<close>[^\w\n]{0,3})(?P<title>[^\W\d_][^\n]{0,60}\n)?",
    re.IGNORECASE,
)
_BRACKET = re.compile(r"[\[(]")
_PLACES = DOCUMENT_NAMES | word_set("no nr number id index score")  # what may count places
_PARTS = word_set("amendment annex annexe anhang exhibit in out p rev stage visit book vol") | {
    "kw"
}
_INITIALS = 3  # characters of a name that is longer
_FEW = 3  # texts that may be in order by chance, if there are less
_IN_TURN = 4  # texts that two names begin in turn, before these are taken for speakers
_MAX_HOLDER = 1024
_MAX_HEADLINE = 128


def is_in_sequence(text: str, start: int) -> bool:
    """Return True if the tag or the line above a list names it a log, a thread or the like."""
    at = text.rfind("<", max(0, start - _MAX_HOLDER), start)
    line = text[max(0, at - _MAX_HOLDER) : max(0, at)].rpartition("\n")[2]
    match = _HOLDER.match(text, at, start) if at >= 0 and not line.strip() else None
    if match is not None:
        return _names_sequence(match[1])
    match = _HEADLINE.search(text, max(0, start - _MAX_HEADLINE), start)
    return match is not None and bool(_HEADING.match(match[1])) and _names_sequence(match[1])


def _names_sequence(name: str) -> bool:
    words = split_name(name)
    if not DOCUMENT_NAMES.isdisjoint(map(singular, words)):
        return False
    return any(word in _SEQUENCES or word.endswith(_SEQUENCE_ENDS) for word in words)


def are_in_sequence(texts: Sequence[str], names: Sequence[str] = ()) -> bool:
    """Return True for texts whose beginnings, or whose names, say that one follows the other: times
    and dates that rise or fall, "Step 2" behind "Step 1", speakers, mails, commits.

    Args:
        names: of their files, each with its path; empty: they have none.
    """
    texts = [text[:_BEGINNING] for text in texts]
    return (
        _are_dated(texts)
        or are_named_parts(texts)
        or _are_counted(texts)
        or _are_spoken(texts)
        or all(map(_LINK.match, texts))
        or (_FIRST.match(texts[0]) is not None and all(map(_NEXT.match, texts[1:])))
        or (len(names) > 1 and all("." in name for name in names) and _are_files(names))
    )


def _are_files(names: Sequence[str]) -> bool:
    files = [name.rpartition("/")[2][:_BEGINNING] for name in names]
    return _are_dated(files) or are_named_files(files)


def _are_dated(texts: Sequence[str]) -> bool:
    found = all_matches(_DATED.match, texts)
    leads = {match["lead"].lower() for match in found}
    if len(leads) != 1:
        return False
    times = [numbers(match["date"]) for match in found]
    if leads.pop() and (len(texts) < _FEW or len(set(times)) == 1):
        return False  # a field of metadata, whose values may be in order by chance
    pairs = list(pairwise(times))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _are_counted(texts: Sequence[str]) -> bool:
    """Return True for texts that begin with a part's number or letter, each with the next one.
    Plain numbers from one on may be places: `1. text`, `[1] text`, `Result 1:`."""
    if (first := _COUNTED.match(texts[0])) is None or _names_place(first):
        return False
    found = all_matches(_COUNTED.match, texts)
    labels = {(match["label"] or "").lower() for match in found}
    label = labels.pop() if labels else ""
    if not found or labels:
        return False
    values = [match["value"].lower() for match in found]
    if all("." in value for value in values):
        versions = [tuple(map(int, value.split("."))) for value in values]
        return (not label or label in DOTTED) and (_follow(versions) or _follow(versions[::-1]))
    if all(map(str.isdecimal, values)):
        counts = list(map(int, values))
        is_late = bool(label) and counts[0] > 1 and len(counts) >= _FEW
        return count_up(counts) and (is_late or _counts_parts(label, found))
    if not label and not all(match["close"].strip() for match in found):
        return False
    return any(
        all(value in names for value in values) and count_up(list(map(names.index, values)))
        for names in (_WORDS, _ROMAN, _LETTERS)
    )


def _names_place(match: re.Match[str]) -> bool:
    label = (match["label"] or "").lower()
    return not {singular(label), label}.isdisjoint(_PLACES)


def _counts_parts(label: str, found: Sequence[re.Match[str]]) -> bool:
    if label:
        return label in _PARTS or is_part(label) or label[1:2].isdecimal()  # S01E
    return all(
        match["title"]
        and match["close"].strip() in ("", "|")
        and not _BRACKET.search(match["open"])
        for match in found
    )


def _follow(versions: Sequence[tuple[int, ...]]) -> bool:
    """Return True for versions or sections of which each is the next one: 1.1, 1.2, 2.0."""
    for a, b in pairwise(versions):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
        if at < 0 or b[at] != a[at] + 1 or any(each > 1 for each in b[at + 1 :]):
            return False
    return True


def _are_spoken(texts: Sequence[str]) -> bool:
    """Return True for texts that all begin with who speaks and a colon: sides of a conversation,
    initials, or two names in turn."""
    names = [(match[1] or match[2]).lower() for match in all_matches(_SPOKEN.match, texts)]
    if len(set(names)) < 2:
        return False
    if all(name in SPEAKING or len(name) < _INITIALS for name in names):
        return True
    return len(names) >= _IN_TURN and len(set(names[::2])) == len(set(names[1::2])) == 1
