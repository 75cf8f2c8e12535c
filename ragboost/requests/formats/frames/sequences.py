"""Lists whose order is their content, whatever their frame: chats, mail threads, logs, recordings,
the parts of a text.

The fields of their elements tell, by name or by values in order, or the name of what holds them.
Knows neither the tags and labels of single elements nor the texts.
"""

import re
from collections.abc import Collection, Mapping, Sequence
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
_SPEAKERS = _set("speaker sender role utterance narrator username nick nickname cell turn")
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
_NTH = re.compile(r"\W{0,3}([^\W\d_]{2,20}|第)[\W_]{0,2}(\d{1,6})(?!\d)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
_MONTH = re.compile(_MONTHS.replace(" ", "|"))
_YEARS = (1900, 2200)
_MAX_VALUE = 40
# Names of a list, or of what holds it, whose elements come one after the other.
_SEQUENCES = _set(
    "agenda captions changelog chat chatlog chronology conversation correspondence dialog dialogue "
    "diary events gitlog history interview itinerary journal log logs lyrics messages minutes "
    "playlist poem recording replies schedule screenplay story subtitles thread timeline "
    "transcript transcription turns verlauf protokoll tagebuch historique historial "
    "对话 对话历史 聊天记录 历史 日志 会話 履歴"
)
_HOLDER = re.compile(r"<([^\W\d][\w.:-]{0,63})(?:\s[^<>]*)?>(?=[ \t]*\r?\n|[ \t]*\Z)")
_HEADLINE = re.compile(r"(?:\A|\n)([^\n]*[^\s])\s*\Z")
_HEADING = re.compile(r"#|\*\*|.*[:：)）*]\Z")
_SEQUENCE_ENDS = ("verlauf", "protokoll", "记录", "記錄", "对话", "日志", "记录如下", "对话如下")
# At the beginning of a text: `[00:01:12]`, `2024-01-01 12:01:00`.
_TIME = re.compile(r"[\[(]?((?:\d{4}-\d\d-\d\d[T ])?\d{1,2}:\d\d(?::\d\d)?)")
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
        _counts(fields, name) for name in words if _ID not in words[name]
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
    return is_ordered_name(label) and all(b == a + 1 for a, b in pairwise(numbers))


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


def are_timed(texts: Sequence[str]) -> bool:
    """Return True for texts that all begin with a time, later and later or earlier and earlier."""
    times: list[tuple[float, ...]] = []
    for text in texts:
        match = _TIME.match(text)
        if match is None:
            return False
        times.append(_numbers(match[1]))
    pairs = list(pairwise(times))
    return all(a <= b for a, b in pairs) or all(a >= b for a, b in pairs)
