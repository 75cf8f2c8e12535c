"""Numbered labels at the beginnings of lines, in any language: `Document 1:`, `[2]`, `文档3：`.

The last document's end is proven by a closing label, a rule, a container, or a question that stands
alone behind a separator which no other document contains; else the list is open.
"""

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from ragboost.requests.citing.cited_words import WORD
from ragboost.requests.formats.frames.candidate import Candidate, HiddenParts
from ragboost.requests.formats.frames.containers import Container, Surroundings
from ragboost.requests.formats.frames.not_documents import (
    MIN_CHARS,
    is_bibliography,
    is_ordered_label,
)
from ragboost.requests.formats.frames.siblings import OddMarkError, common_separator, is_count
from ragboost.requests.formats.frames.spans import check_number, lines, strip
from ragboost.requests.formats.groups import DocumentBlock
from ragboost.requests.formats.instructions.questions import (
    Question,
    end_alike,
    end_before_question,
    has_odd_end,
)

_BEFORE = re.compile(
    r"[ \t]{0,3}(?:(?:\#{1,6}|[*=~%+-]{3,32})[ \t]{1,8})?(?:\*\*)?[\[【(（<「《{|]{0,3}/?"
    rf"(?:{WORD}(?:[ _-]{WORD}){{0,2}}[ _\#:：-]{{0,2}}(?:[\[【]| [(（])?)?"
)
_MAX_BEFORE = 138  # characters that it can match
_BEHIND = r"\])】）」》>}|:：、*"
_MAX_BEHIND = 4
_LINE_END = r"(?=[ \t]*\r?(?:\n|\Z))"
# Labels count from 0 or 1. A search for one fixed character is many times faster.
# Behind a number: marks, a colon as in French, what a line with a rule before it ends with, or a
# title: `Document 1 (a.pdf):`.
_TITLE = " "
_IS_TITLE = r"(?=[(\[|–—-][^\n])"
_AFTER = rf"[{_BEHIND}]{{1,{_MAX_BEHIND}}}|[ \u00a0\u202f][:：]|[ \t][*=~%+-]{{3,32}}{_LINE_END}"
_AFTER += f"|{_TITLE}{_IS_TITLE}"
_FIRST = {n: re.compile(rf"{n}(?:({_AFTER})|{_LINE_END})") for n in "01"}
_LATER = re.compile(rf"(?<!\d)([2-9]|[1-9]\d{{1,3}})(?:({_AFTER})|{_LINE_END})")
_ID_PREFIX = "[Doc_"  # of our own labels, which may have ids in place of numbers
_ID_START = re.compile(re.escape(_ID_PREFIX))
_ID_LABEL = re.compile(r"\n\[Doc_(?P<n>[\w.:~-]{1,48})\]")
_IS_CLEAR = re.compile(r"[^\W\d_]|[\[【「《]")  # else it is `1.` or `(1)`, as steps are
_MAX_KINDS = 64
_BRANCHES = ("├──", "└──")  # RAGFlow's title and other fields
_MAX_TITLE = 120
_NEAR = 80  # characters between a rule and the label below it
# The prompt of LlamaIndex's citations begins with an example of its own list.
_EXAMPLE = "Please provide an answer based solely on the provided sources."
_EXAMPLE_END = "Now it's your turn."
_ONE_STEP = re.compile(r"1[.)][ \t]")
_STEP = re.compile(r"\n[ \t]{0,3}\(?(?P<n>\d{1,4})[.)][ \t]+(?=\S)")


class _Label(NamedTuple):
    start: int
    end: int  # behind the label
    number: tuple[int, int]
    name: str


def find(
    text: str, hidden: HiddenParts, around: Surroundings, *, is_closed: bool, question: Question
) -> Iterator[Candidate]:
    """Find lists of labelled documents.

    Args:
        hidden: stretches whose lines are not looked at.
        around: the containers and rules of the text.
        is_closed: the text ends with the last document.
        question: whether the user's may end the text.
    """
    families = _families(text, hidden)
    if hidden:
        yield from _crossed(text, families, hidden)
    families = {key: labels for key, labels in families.items() if len(labels) > 1}
    pairs = {
        key: closers
        for key, labels in families.items()
        if (closers := _closing(text, labels, families.values())) is not None
    }
    for (before, after), labels in families.items():
        if is_ordered_label(before) or any(labels is closers for closers in pairs.values()):
            continue
        frame, names = f"{before.strip()}n{after}", [label.name for label in labels]
        is_counted = is_count(names)
        if is_counted and (before, after) in pairs:
            yield _paired(text, labels, pairs[before, after], frame)
        elif is_counted or (before == _ID_PREFIX and len(set(names)) == len(names)):
            first, last = labels[0].start, labels[-1].end
            begin, end = strip(text, 0, len(text))
            whole = [Container(begin, end, end)] if is_closed else []
            holders = [c for c in (*around.containers, *whole) if c.start <= first <= last <= c.end]
            holder = holders[0] if holders else None
            yield _listed(
                text, labels, frame, around, is_counted=is_counted, holder=holder, question=question
            )
        elif names[0] in ("0", "1") and names[1] in ("1", "2"):
            yield _uncertain(text, labels, frame, "the numbers have gaps or repeat")


def steps(text: str, hidden: HiddenParts) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
    """Return where the lines `1. `, `2. ` ... begin, and their digits, if there is one count.

    They may be steps as well as documents: traffic tells.
    """
    if _ONE_STEP.search(text) is None:
        return (), ()
    found = list(lines(text, _STEP, hidden.gaps(len(text))))
    if len(found) < 2 or not is_count([each.match["n"] for each in found]):
        return (), ()
    digits = [(each.match.start("n") - 1, each.match.end("n") - 1) for each in found]
    return tuple([each.start for each in found]), tuple(digits)


def _families(text: str, hidden: HiddenParts) -> dict[tuple[str, str], list[_Label]]:
    """Return the labels of each kind, in the order of their first ones."""
    begin = text.find(_EXAMPLE_END) if text.startswith(_EXAMPLE) else 0
    patterns = {(before, after): _pattern(before, after) for before, after in _kinds(text, hidden)}
    if "_" in text and _ID_START.search(text) is not None:
        patterns[_ID_PREFIX, "]"] = _ID_LABEL
    families: dict[tuple[str, str], list[_Label]] = {}
    for kind, pattern in patterns.items():
        labels = families[kind] = []
        for at, end, match in lines(text, pattern, hidden.gaps(len(text))):
            if at >= begin:
                start, stop = match.span("n")
                labels.append(_Label(at, end, (start - 1, stop - 1), match["n"]))
        check_number(labels)
    found = [item for item in families.items() if item[1]]
    return dict(sorted(found, key=lambda item: item[1][0].start))


def _kinds(text: str, hidden: HiddenParts) -> set[tuple[str, str]]:
    """Return what stands before and behind the number of each label with a 0 or 1; none of absurdly
    many."""
    kinds: set[tuple[str, str]] = set()
    gaps = [*hidden.gaps(len(text))]
    for match in chain.from_iterable(
        [_FIRST[n].finditer(text, *gap) for n in "01" for gap in gaps]
    ):
        if before := _before(text, match.start()):
            kinds.add((before, match[1] or ""))
    kinds = {kind for kind in kinds if kind[0] != _ID_PREFIX}
    return kinds if len(kinds) <= _MAX_KINDS else set()


def _before(text: str, at: int) -> str:
    """Return what stands before the number of a label; empty if it is none."""
    start = text.rfind("\n", max(0, at - _MAX_BEFORE), at) + 1
    if start == 0 and at > _MAX_BEFORE:
        return ""
    is_label = _BEFORE.fullmatch(text, start, at) and _IS_CLEAR.search(text, start, at)
    return text[start:at] if is_label else ""


def _pattern(before: str, after: str) -> re.Pattern[str]:
    behind = re.escape(after) if after else _LINE_END
    if after == _TITLE:
        behind += _IS_TITLE
    elif 0 < len(after) < _MAX_BEHIND:
        behind += f"(?![{_BEHIND}])"
    return re.compile(rf"\n{re.escape(before)}(?P<n>\d{{1,6}}){behind}")


def _crossed(
    text: str, families: Mapping[tuple[str, str], list[_Label]], hidden: HiddenParts
) -> Iterator[Candidate]:
    """Find lists of which a label is hidden, but not the one beside it, as if an element began in
    one of their documents, or before them, and ended in another."""
    problem = "a label of theirs inside another list"
    for (before, after), match in _later(text, families, hidden).items():
        at = text.find(f"\n{before}{int(match[1]) - 1}{after}", 0, match.start()) + 1
        if 0 < at in hidden:
            yield Candidate(at, match.end(), f"{before.strip()}n{after}", problem=problem)
    for (before, after), labels in families.items():
        names = {label.name for label in labels}
        first = int(labels[0].name) if labels[0].name in ("0", "1") else -1
        if first < 0 or is_ordered_label(before):
            continue
        number = next(n for n in range(first, first + len(names) + 1) if str(n) not in names)
        at = text.find(f"\n{before}{number}{after}", labels[0].end) + 1
        if 0 < at in hidden:
            frame = f"{before.strip()}n{after}"
            yield Candidate(labels[0].start, max(at, labels[-1].end), frame, problem=problem)


def _later(
    text: str, families: Collection[tuple[str, str]], hidden: HiddenParts
) -> dict[tuple[str, str], re.Match[str]]:
    """Return the first label of each kind whose labels with a 0 or 1 are hidden, if there are any;
    none of absurdly many."""
    found: dict[tuple[str, str], re.Match[str]] = {}
    for match in chain.from_iterable([_LATER.finditer(text, *g) for g in hidden.gaps(len(text))]):
        kind = before, _ = _before(text, match.start()), match[2] or ""
        if before and kind not in families and not is_ordered_label(before):
            found.setdefault(kind, match)
    return found if len(found) <= _MAX_KINDS else {}


def _closing(
    text: str, labels: Sequence[_Label], families: Iterable[list[_Label]]
) -> list[_Label] | None:
    """Return the labels that close these: each has the same number, and the next one opens behind
    it."""
    for other in families:
        if other is labels or len(other) != len(labels) or other[0].start < labels[0].start:
            continue
        nexts = [label.start for label in labels[1:]]
        is_matched = all(
            opener.name == closer.name and opener.end <= closer.start
            for opener, closer in zip(labels, other, strict=True)
        )
        if is_matched and all(
            closer.end <= at and not text[closer.end : at].strip()
            for closer, at in zip(other, nexts, strict=False)
        ):
            return other
    return None


def _paired(
    text: str, labels: Sequence[_Label], closers: Sequence[_Label], frame: str
) -> Candidate:
    blocks = []
    for opener, closer in zip(labels, closers, strict=True):
        start, end = strip(text, opener.end, closer.start)
        numbers = (opener.number, closer.number)
        blocks.append(
            DocumentBlock(opener.start, closer.end, text[start:end] or None, start, end, numbers)
        )
    end = closers[-1].end
    if sum(block.text_end - block.text_start for block in blocks) < 20 * len(blocks):
        return _uncertain(text, labels, frame, "too short")
    return Candidate(labels[0].start, end, frame, tuple(blocks), end)


def _listed(
    text: str,
    labels: Sequence[_Label],
    frame: str,
    around: Surroundings,
    *,
    is_counted: bool,
    holder: Container | None,
    question: Question,
) -> Candidate:
    """Cut a list at its labels.

    Args:
        is_counted: the labels count the documents; else they are ids, which move along.
        around: the rules of the text.
        holder: the container that says where the last document ends, maybe the whole text.
        question: whether one may follow the last document.
    """
    starts = [label.start for label in labels]
    begin, end, close = holder or (starts[0], -1, -1)
    gaps = [
        text[strip(text, label.end, start)[1] : start]
        for label, start in zip(labels, starts[1:], strict=False)
    ]
    separator = common_separator(gaps)
    try:
        ruled = _ruled(text, starts, around)
    except OddMarkError as error:
        if end >= 0:
            return _uncertain(text, labels, frame, str(error))
        ruled, question = None, Question.NONE
    if ruled is not None:
        separator = ruled[2]
        end, close = ruled[:2] if ruled[0] >= 0 else (end, close)
    elif separator.count("\n") < 1 or len({gap.count("\n") for gap in gaps}) > 1:
        return _uncertain(text, labels, frame, "labels that are not separated alike")
    ends = [start - len(separator) for start in starts[1:]]
    bodies = [strip(text, label.end, stop) for label, stop in zip(labels, ends, strict=False)]
    if is_bibliography(text[start:stop] for start, stop in bodies):
        return _uncertain(text, labels, frame, "works that a text cites")
    if end < 0 and question and separator.count("\n") > 1:
        end = close = end_before_question(text, starts[0], labels[-1].end, bodies, question)
    if end < 0 or (separator.count("\n") < 2 and close == end):
        return _open(starts, labels, frame, len(text), is_counted=is_counted)
    bodies.append(strip(text, labels[-1].end, end))
    if min(stop - start for start, stop in bodies) < MIN_CHARS:
        return _uncertain(text, labels, frame, "too short for documents")
    if has_odd_end(text, bodies):
        return _open(starts, labels, frame, len(text), is_counted=is_counted)
    stretches = (bodies, [*bodies, (begin, starts[0])])
    is_odd = begin < starts[0] and not end_alike(text, bodies)
    if is_odd or (ruled is None and any(map(around.has_odd_rule, stretches))):
        problem = "a mark before it or in its last document only"
        return Candidate(starts[0], max(end, close), frame, problem=problem)
    blocks = _blocks(text, labels, bodies, is_counted=is_counted)
    return Candidate(starts[0], max(end, close), frame, blocks, close)


def _open(
    starts: Sequence[int], labels: Sequence[_Label], frame: str, stop: int, *, is_counted: bool
) -> Candidate:
    """Return a list whose last document has no certain end: traffic may tell."""
    numbers = tuple([label.number for label in labels]) if is_counted else ()
    problem = "the last one has no end"
    return Candidate(starts[0], stop, frame, marks=tuple(starts), numbers=numbers, problem=problem)


def _ruled(text: str, starts: Sequence[int], around: Surroundings) -> tuple[int, int, str] | None:
    """Return the end of the last document and of the frame, and what separates the documents, where
    the same rule stands before each label. The ends are -1 if none stands behind the last one.

    Raises:
        OddMarkError: more such rules, or too few to be sure that they separate the documents.
    """
    rules = around.rules
    ends = [rule.end for rule in rules]
    places = [bisect_right(ends, start) - 1 for start in starts]
    before = [
        rules[i] if i >= 0 and text[ends[i] : min(start, ends[i] + _NEAR)].isspace() else None
        for i, start in zip(places, starts, strict=True)
    ]
    if None in before[1:]:
        return None
    first, *others = before
    between = [rule for rule in others if rule is not None]
    mark = between[0].mark
    same = [rule for rule in rules if rule.mark == mark]
    ends = [strip(text, 0, rule.start)[1] for rule in between]
    separator = common_separator(
        [text[slice(*each)] for each in zip(ends, starts[1:], strict=True)]
    )
    lead, _, behind = separator.partition(mark)
    num, is_alike = len(between), True
    if first is not None and first.mark == mark:
        num, is_alike = num + 1, text[first.start + len(mark) : starts[0]] == behind
    if behind and num > 1 and is_alike and mark not in around.begun_rules:
        if len(same) == num:
            return -1, -1, separator
        end = same[-1].start
        is_closed = end > starts[-1] and same[-1].may_enclose and text.endswith(lead, 0, end)
        if is_closed and num == len(starts) == len(same) - 1:
            return end, same[-1].end, separator
    raise OddMarkError("rules between some of the documents")


def _num_header(text: str, labels: Sequence[_Label], bodies: Sequence[tuple[int, int]]) -> int:
    """Return how many lines of a title or of fields all documents have above their texts."""
    num = min(_num_branches(text, *body) for body in bodies)
    if num or not text.startswith("#", labels[0].start):
        return num
    titles = [text.find("\n", *body) - body[0] for body in bodies]
    return int(all(0 < size <= _MAX_TITLE for size in titles))


def _num_branches(text: str, start: int, stop: int) -> int:
    num = 0
    while text.startswith(_BRANCHES, start) and (end := text.find("\n", start, stop)) >= 0:
        start, num = end + 1, num + 1
    return num


def _blocks(
    text: str, labels: Sequence[_Label], bodies: Sequence[tuple[int, int]], *, is_counted: bool
) -> tuple[DocumentBlock, ...]:
    num_header = _num_header(text, labels, bodies)
    blocks: list[DocumentBlock] = []
    for label, (start, stop) in zip(labels, bodies, strict=True):
        for _ in range(num_header):
            start = strip(text, text.index("\n", start, stop), stop)[0]
        numbers = (label.number,) if is_counted else ()
        name = "" if numbers else text[label.start : label.end].strip()
        core = text[start:stop] or None
        end = max(label.end, stop)
        blocks.append(DocumentBlock(label.start, end, core, start, stop, numbers, name))
    return tuple(blocks)


def _uncertain(text: str, labels: Sequence[_Label], frame: str, problem: str) -> Candidate:
    return Candidate(labels[0].start, labels[-1].end, frame, problem=problem)
