"""Lists whose order is their content, whatever their frame: chats, mail threads, logs, recordings,
the parts of a text.

The fields of their elements tell, by name or by values in order, or the name of what holds them.
Knows neither the tags and labels of single elements nor the texts.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from ragboost.requests.formats.frames.not_documents import (
    DOCUMENT_NAMES,
    ORDERED_NAMES,
    is_ordered_name,
    singular,
    split_name,
)


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Words of the fields of a message; of those that with a time tell a message or an entry of a log.
_SPEAKERS = _set(
    "speaker sender role utterance narrator username nick nickname cell turn action thought "
    "observation"
)
_SPEAKING = _set(
    "human ai user assistant system bot agent customer client operator tool model support caller "
    "humanmessage aimessage systemmessage toolmessage doctor patient interviewer teacher student"
)
_WHO = _set("author user from by subject sha commit")
_SAID = _set("date datetime time timestamp timecode ts sent received posted created at when utc")
_PUBLISHED = _set("published publication pub updated modified")
_WHEN = frozenset(("date", "time", "timestamp", "ts", "start", "end"))
# Words of the fields that say when a part of a recording begins and ends: `start_ms`, `endTime`.
_BEGINS = frozenset(("start", "begin", "from", "onset", "offset"))
_ENDS = frozenset(("end", "stop", "to", "until", "duration", "dur"))
_UNITS = frozenset(("time", "timestamp", "ts", "at", "s", "sec", "secs", "seconds", "ms", "millis"))
_TIMES = (_SAID | _PUBLISHED | _BEGINS) - {"from"}
# Words of the fields that say where a chunk stands in a file, or when it was loaded.
_NO_TIMES = _set(
    "char chars character idx index line token byte page position crawled fetched indexed ingested "
    "retrieved accessed"
)
_RANK = "rank"
_RELEVANCE = frozenset(("score", "similarity", "relevance"))
_DISTANCE = "distance"
_PAGE = "page"
# Numbers of these may count the results of a search, or belong to a name.
_NO_COUNTS = frozenset(("item", "query", "title", "name"))
_COMMIT = "commit"
_ID = "id"  # may count what a search has found
_FILES = _set("url source path file filename file_name file_path")
_TITLES = _FILES | {"title"}
# A value as in "Step 5: the roof", and what is looked at of one with a time.
_NTH = re.compile(r"\W{0,3}([^\W\d_]{2,20}|[第§v])[\W_]{0,2}(\d{1,6})(?!\d)")
_SIGNS = frozenset(("第", "§", "v", "art", "article", "section"))
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
_MONTH = re.compile(_MONTHS.replace(" ", "|"))
_YEARS = (1900, 2200)
_MAX_VALUE = 40
# Names of a list, or of what holds it, whose elements come one after the other.
_SEQUENCES = _set(
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
# At the beginning of a text: `[00:01:12]`, `2024-01-01 12:01:00`, `3 May 2024`, `1994:`.
_TIME = re.compile(
    r"[\[(]?(\d{4}-\d\d-\d\d(?:[T ]\d{1,2}:\d\d(?::\d\d)?)?|\d{1,2}:\d\d(?::\d\d)?"
    rf"|\d{{1,2}}\.? (?:{_MONTH.pattern})[a-z]* \d{{4}}"
    rf"|(?:{_MONTH.pattern})[a-z]* (?:\d{{1,2}},? )?\d{{4}}"
    r"|\d{1,2}[./]\d{1,2}[./]\d{4}|(?:1[5-9]|20)\d\d(?=:))"
)
_DAYS = "(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_LINK = re.compile(
    rf"{_DAYS}\b[^\n]{{0,20}}:|commit [0-9a-f]{{7,40}}\b"
    r"|From: [^\n]+\n(?:To|Subject|Date): |@@ -\d|Thought:|(?:[-*] )?\[[ xX]\] "
)
_FIRST = re.compile(r"(?:\W{0,3}First(?:ly)?|To begin with)\b[ ,:]")
_NEXT = re.compile(
    r"\W{0,3}(?:Second|Third|Fourth|Fifth|Then|Next|After|Finally|Last)(?:ly|wards)?\b[ ,:]"
)
_BEGINNING = 160  # characters of a text that are read
# At the beginning of a text: `Ann: ...`.
_SPOKEN = re.compile(r"([^\W\d_][\w.'-]{0,23})[:：]\s")
_INITIALS = 3  # characters of a name that is longer
_IN_TURN = 4  # texts that two names begin in turn, before these are taken for speakers
_MAX_HOLDER = 1024
_MAX_HEADLINE = 128


def is_sequence(fields: Sequence[Mapping[str, object]]) -> bool:
    """Return True for elements whose order is their content: messages, a mail thread, a log, parts
    of a recording or of a text.

    The names of their fields tell, or the values: times that rise or fall, pages or steps without a
    gap. What a search finds has such values in no order; two results may be in order by chance.

    Args:
        fields: of each element, by name.
    """
    words = {name: frozenset(split_name(name)) for name in fields[0]}
    is_titled = not _TITLES.isdisjoint(map(str.lower, words))
    if _is_message(words, is_titled=is_titled) or any(
        _ID not in words[name] and (_counts(fields, name) or _speaks(fields, name, words[name]))
        for name in words
    ):
        return True
    if _COMMIT in words and _FILES.isdisjoint(words):
        return len({str(each.get(_COMMIT)) for each in fields}) == len(fields)
    if (is_titled and len(fields) < 3) or _is_ranked(fields, words):
        return False
    is_found = _is_found(fields, words)
    return any(
        _is_in_order(fields, name, words[name], is_titled=is_titled)
        and not (is_found and _PAGE in words[name])
        for name in words
    )


def _is_message(words: Mapping[str, frozenset[str]], *, is_titled: bool) -> bool:
    """Return True for fields that say who said something, who and when, or from when to when."""
    if is_titled:
        return False
    if any(not each.isdisjoint(_SPEAKERS) for each in words.values()):
        return True
    has_who = any(not each.isdisjoint(_WHO) and _ID not in each for each in words.values())
    has_time = any(
        not each.isdisjoint(_SAID) and each.isdisjoint(_PUBLISHED | _NO_TIMES)
        for each in words.values()
    )
    num_times = len({name.lower() for name in words} & _WHEN) + 2 * _is_span(words.values())
    return num_times > 1 or (has_who and has_time)


def _is_span(words: Collection[frozenset[str]]) -> bool:
    """Return True if two fields say when something begins and ends, however they are spelled."""
    return all(
        any(not kinds.isdisjoint(each) and each <= kinds | _UNITS for each in words)
        for kinds in (_BEGINS, _ENDS)
    )


def _speaks(fields: Sequence[Mapping[str, object]], name: str, words: frozenset[str]) -> bool:
    """Return True for values that say who speaks: a side of a conversation, true or false for one,
    or a few people who speak more than once."""
    values = [each.get(name) for each in fields]
    if all(str(value).lower() in ("true", "false") for value in values):
        return not words.isdisjoint(_SPEAKING)
    if not all(isinstance(value, str) and 0 < len(value) <= _MAX_VALUE for value in values):
        return False
    names = {str(value).lower() for value in values}
    is_told = names <= _SPEAKING or (not words.isdisjoint(_WHO) and _FILES.isdisjoint(words))
    return is_told and len(names) > 1 and (len(names) < len(values) or names <= _SPEAKING)


def _counts(fields: Sequence[Mapping[str, object]], name: str) -> bool:
    """Return True for values like "Step 5", "Step 6"."""
    label, numbers = "", list[int]()
    for each in fields:
        value = each.get(name)
        match = _NTH.match(value) if isinstance(value, str) else None
        if match is None or (label and match[1] != label):
            return False
        label = match[1]
        numbers.append(int(match[2]))
    return is_ordered_name(label) and _count_up(numbers)


def _is_ranked(fields: Sequence[Mapping[str, object]], words: Mapping[str, frozenset[str]]) -> bool:
    """Return True for ranks, or scores that fall: the order is that of a search."""
    for name in words:
        if _RANK in words[name]:
            return True
        if not words[name].isdisjoint(_RELEVANCE):
            scores = [_numbers(each.get(name)) for each in fields]
            if scores[0] > scores[-1] > () and all(a >= b for a, b in pairwise(scores)):
                return True
    return False


def _is_found(fields: Sequence[Mapping[str, object]], words: Mapping[str, frozenset[str]]) -> bool:
    """Return True for distances that rise, or for three scores or more that rise: a search gave
    them, so that pages without a gap may be chance. A time would tell a journey or a game."""
    for name in words:
        is_distance = _DISTANCE in words[name]
        if (is_distance or not words[name].isdisjoint(_RELEVANCE)) and len(fields) > 2:
            scores = [_numbers(each.get(name)) for each in fields]
            if () < scores[0] < scores[-1] and all(a <= b for a, b in pairwise(scores)):
                return True
    return False


def _is_in_order(
    fields: Sequence[Mapping[str, object]],
    name: str,
    words: frozenset[str],
    *,
    is_titled: bool,
) -> bool:
    """Return True for times that rise or fall, and for numbers of pages or steps without a gap."""
    is_time = not words.isdisjoint(_TIMES) and words.isdisjoint(_NO_TIMES)
    is_counted = not words.isdisjoint(ORDERED_NAMES) and words.isdisjoint(_NO_COUNTS)
    if not (is_time or is_counted):
        return False
    is_counted = is_counted and str(fields[0][name]).lstrip("p.# ").isdigit()
    rises = falls = is_time
    values: list[tuple[float, ...]] = []
    for each in fields:
        if not (value := _numbers(each.get(name))):
            return False
        last = values[-1] if values else value
        rises, falls = rises and last <= value, falls and last >= value
        is_counted = is_counted and last <= value <= (last[0] + 1,)
        if not (rises or falls or is_counted):
            return False
        values.append(value)
    num = len(values)
    return len(set(values)) >= (num if is_titled else min(num, max(3, num // 2 + 1)))


def _numbers(value: object) -> tuple[float, ...]:
    """Return the numbers of a value, those of a time from the year or the hour down; of a list, as
    in `[start, end]`, those of its first element."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, int | float):
        return (value,)
    if not isinstance(value, str) or len(value) > _MAX_VALUE:
        return ()
    found = [float(number) for number in _NUMBER.findall(value)]
    month = _MONTH.search(value)
    if month is not None:
        found.insert(0, _MONTHS.index(month[0]))
    year = next((number for number in found if _YEARS[0] <= number < _YEARS[1]), None)
    if year is not None:
        found.remove(year)
        found.insert(0, year)
    elif ":" in value:
        found = [0.0] * (3 - len(found)) + found
    return tuple(found)


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
        _are_numbered(texts)
        or _are_spoken(texts)
        or all(map(_LINK.match, texts))
        or (_FIRST.match(texts[0]) is not None and all(map(_NEXT.match, texts[1:])))
        or (len(names) > 1 and all("." in name for name in names) and _are_files(names))
    )


def _are_files(names: Sequence[str]) -> bool:
    return _are_numbered([name.rpartition("/")[2][:_BEGINNING] for name in names])


def _are_numbered(texts: Sequence[str]) -> bool:
    return _are_dated(texts) or _are_counted(texts)


def _are_dated(texts: Sequence[str]) -> bool:
    times: list[tuple[float, ...]] = []
    for text in texts:
        match = _TIME.match(text)
        if match is None:
            return False
        times.append(_numbers(match[1]))
    pairs = list(pairwise(times))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)


def _are_counted(texts: Sequence[str]) -> bool:
    found = [_NTH.match(text) for text in texts]
    labels = {match[1].lower() if match is not None else "" for match in found}
    label = labels.pop()
    if labels or not (label in _SIGNS or is_ordered_name(label)):
        return False
    return _count_up(int(match[2]) for match in found if match is not None)


def _count_up(numbers: Iterable[int]) -> bool:
    return all(b == a + 1 for a, b in pairwise(numbers))


def _are_spoken(texts: Sequence[str]) -> bool:
    """Return True for texts that all begin with who speaks and a colon: sides of a conversation,
    initials, or two names in turn."""
    names = [match[1].lower() for text in texts if (match := _SPOKEN.match(text)) is not None]
    if len(names) < len(texts) or len(set(names)) == 1:
        return False
    if all(name in _SPEAKING or len(name) < _INITIALS for name in names):
        return True
    return len(names) >= _IN_TURN and names[::2].count(names[0]) + names[1::2].count(
        names[1]
    ) == len(names)
