"""Tell from the fields of a list's elements that their order is their content: by name, or by
values in order.

Knows neither the tags and labels of single elements nor the texts.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from ragboost.requests.formats.frames.not_documents import (
    ORDERED_NAMES,
    split_name,
    word_set,
)
from ragboost.requests.formats.frames.sequences.values import (
    DOTTED,
    MAX_VALUE,
    are_named_parts,
    numbers,
    parts,
    succeed,
)

# Words of the fields of a message; of those that with a time tell a message or an entry of a log.
_SPEAKERS = word_set(
    "speaker sender role utterance narrator username nick nickname cell turn action thought "
    "observation"
)
SPEAKING = word_set(
    "human ai user assistant system bot agent customer client operator tool model support caller "
    "humanmessage aimessage systemmessage toolmessage doctor patient interviewer teacher student"
)
_WRITERS = frozenset(("author", "by"))  # of a document, too
_LINKS = word_set("reply parent parents previous prev")
_WHO = word_set("author user from by subject sha commit")
_SAID = word_set(
    "date datetime time timestamp timecode ts sent received posted created at when utc"
)
_PUBLISHED = word_set("published publication pub updated modified")
_WHEN = frozenset(("date", "time", "timestamp", "ts", "start", "end"))
# Words of the fields that say when a part of a recording begins and ends: `start_ms`, `endTime`.
_BEGINS = frozenset(("start", "begin", "from", "onset", "offset"))
_ENDS = frozenset(("end", "stop", "to", "until", "duration", "dur"))
_UNITS = frozenset(("time", "timestamp", "ts", "at", "s", "sec", "secs", "seconds", "ms", "millis"))
_TIMES = (_SAID | _PUBLISHED | _BEGINS | word_set("t period month quarter frame")) - {"from"}
_COUNTED = ORDERED_NAMES | word_set("seq sequence lines")
# Words of the fields that say where a chunk stands in a file, or when it was loaded.
_NO_TIMES = word_set(
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
_FILES = word_set("url source path file filename file_name file_path")
_TITLES = _FILES | {"title"}


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
        _ID not in words[name]
        and (
            are_named_parts([each.get(name) for each in fields])
            or _speaks(fields, name, words[name], is_titled=is_titled)
            or _links(fields, name, words[name])
        )
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


def _links(fields: Sequence[Mapping[str, object]], name: str, words: frozenset[str]) -> bool:
    """Return True for a field by which each element names the one before it."""
    return not words.isdisjoint(_LINKS) and all(
        str(each.get(name)).strip("[]'\" ") in map(str, before.values())
        for before, each in pairwise(fields)
    )


def _speaks(
    fields: Sequence[Mapping[str, object]],
    name: str,
    words: frozenset[str],
    *,
    is_titled: bool,
) -> bool:
    """Return True for values that say who speaks: a side of a conversation, true or false for one,
    or a few people who speak more than once. Authors are speakers only if two of them alternate:
    those of documents are metadata."""
    values = [each.get(name) for each in fields]
    if all(str(value).lower() in ("true", "false") for value in values):
        return not words.isdisjoint(SPEAKING)
    if not all(isinstance(value, str) and 0 < len(value) <= MAX_VALUE for value in values):
        return False
    names = {str(value).lower() for value in values}
    if not (words.isdisjoint(_WRITERS) or names <= SPEAKING):
        is_in_turn = all(a == b for a, b in zip(values, values[2:], strict=False))
        return len(names) == 2 and len(values) > 2 and is_in_turn and not is_titled
    is_told = names <= SPEAKING or (not words.isdisjoint(_WHO) and _FILES.isdisjoint(words))
    return is_told and len(names) > 1 and (len(names) < len(values) or names <= SPEAKING)


def _is_ranked(fields: Sequence[Mapping[str, object]], words: Mapping[str, frozenset[str]]) -> bool:
    """Return True for ranks, or scores that fall: the order is that of a search."""
    for name in words:
        if _RANK in words[name]:
            return True
        if not words[name].isdisjoint(_RELEVANCE):
            scores = [numbers(each.get(name)) for each in fields]
            if scores[0] > scores[-1] > () and all(a >= b for a, b in pairwise(scores)):
                return True
    return False


def _is_found(fields: Sequence[Mapping[str, object]], words: Mapping[str, frozenset[str]]) -> bool:
    """Return True for distances that rise, or for three scores or more that rise: a search gave
    them, so that pages without a gap may be chance. A time would tell a journey or a game."""
    for name in words:
        is_distance = _DISTANCE in words[name]
        if (is_distance or not words[name].isdisjoint(_RELEVANCE)) and len(fields) > 2:
            scores = [numbers(each.get(name)) for each in fields]
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
    is_counted = not words.isdisjoint(_COUNTED) and words.isdisjoint(_NO_COUNTS)
    if is_counted and succeed(counts := [parts(each.get(name)) for each in fields]):
        is_plain = all(len(count) == 1 for count in counts)
        if is_plain or not words.isdisjoint(DOTTED):
            return _are_distinct(counts, is_titled=is_titled)
    is_time = is_time and (words != {"t"} or isinstance(fields[0].get(name), int | float))
    if not is_time:
        return False
    rises = falls = True
    values: list[tuple[float, ...]] = []
    for each in fields:
        if not (value := numbers(each.get(name))):
            return False
        last = values[-1] if values else value
        rises, falls = rises and last <= value, falls and last >= value
        if not (rises or falls):
            return False
        values.append(value)
    return _are_distinct(values, is_titled=is_titled)


def _are_distinct(values: Sequence[tuple[float, ...]], *, is_titled: bool) -> bool:
    num = len(values)
    return len(set(values)) >= (num if is_titled else min(num, max(3, num // 2 + 1)))
