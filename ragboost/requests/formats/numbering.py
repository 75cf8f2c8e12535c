"""The numbers of a list of documents, and what the client's text and its model say by them.

Numbers are places: they stay where they are when documents move. So answers are given back with
the client's numbers, and written with the places' where the client resends them, as are later
questions that name a document. A list stays where any other text of the client names one.
"""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ragboost.requests.citing.cited_words import SYNONYMS, WORD
from ragboost.requests.citing.how_to_cite import naming_lines
from ragboost.requests.formats.citations import (
    ALONE,
    CitationMap,
    NumberEdit,
    OtherLists,
)
from ragboost.requests.formats.groups import EVIDENCE, Edit, Group, TextGroup
from ragboost.requests.formats.notes import asks_other_form
from ragboost.requests.wires.answer_texts import assistant_texts
from ragboost.requests.wires.body import Path, Slot, find_slots, message_list

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_WORD = re.compile(rf"({WORD})((?:[ \u00a0_#:：-]|\*\*)*)[\[【(（]?\Z")
_TAG = re.compile(r"<([^\W\d_]{1,40})\b")
# Two lines that begin with a number and a label's word or marks, or one that ends with a colon: a
# list that was not found.
_WORDED = r"[^\W\d_]{1,40}[ \u00a0#:：_-]{0,2}\d{1,6}"
_MARK = rf"(?:{_WORDED}|[\[【(（「]{{1,2}}(?:{_WORDED}|\d{{1,6}})[\])】）」:：])"
_LABEL = rf"^[ \t#*>-]{{0,8}}(?:{_MARK}|<[^\W\d][^<>\n]{{0,80}}?=[\"']\d{{1,6}}[\"'])"
_FIELD = r'"(?:index|id|rank|position|number|n)"\s*:\s*'
_COUNTED = rf'{_FIELD}"?[01]"?\s*[,}}][\s\S]*?{_FIELD}"?[12]"?\s*[,}}]'  # objects of JSON
_LISTED = re.compile(
    rf"{_LABEL}(?:.*\n)+?{_LABEL}|^[ \t#*>-]{{0,8}}{_WORDED}.{{0,120}}[:：][ \t\r]*$|{_COUNTED}",
    re.MULTILINE,
)
# A line that begins with a number, or is one: `1.`, `(1)`, `**1.**`, `### 1:`, `1 -`.
_POINT = re.compile(
    r"^[ \t#*>§(（-]{0,8}(?:n[ro]\. ?)?(\d{1,3})(?=[.)、．:：*）](?!\d)|[ \t]?[-–—]|[ \t\r]*$)",
    re.MULTILINE | re.IGNORECASE,
)
_MIN_PARAGRAPH = 100  # characters of a point, on average, that is more than one
# Labels of that list, by their kind.
_MARKS = re.compile(
    r"^[ \t#*>-]{0,8}(?:(?P<bracket>[\[【［「]{1,2})?(?P<word>[^\W\d_]{1,40})?[ \u00a0#:：_-]{0,2}"
    r"\d{1,6}(?(bracket)[\]】］」])|<(?P<tag>[^\W\d_][\w-]{0,40})[^<>\n]{0,80}?=[\"']\d{1,6}[\"'])",
    re.MULTILINE,
)
_NAMES = ("text", "文獻", "文献", "來源")  # that a question may call a document, beside `SYNONYMS`
_QUOTED = re.compile(
    r"\"[^\"\n]{0,1000}\"|“[^”\n]{0,1000}”|(?<!\w)'[^\n]{0,1000}?'(?!\w)|«[^»\n]{0,1000}»"
)
# Before a number in a question that names something else: `my own Document 2`, `- [1] buy milk`.
_OWN = re.compile(
    r"\b(?:my|our|own|your|his|her|their|meine?|unsere?) (?:own )?[^\W\d_]+[ #]{0,2}\Z"
    r"|^[ \t]*[-*+] \[\Z",
    re.IGNORECASE | re.MULTILINE,
)
# Before a text of the user's own: `Proofread: as shown in [3]`.
_GIVEN = re.compile(
    r"\b(?:proofread|fix|correct|rephrase|rewrite|translate|edit|improve|sort|my|korrigiere|übersetze"
    r"|corrige|traduis|traduce|mein\w?)\b[^\n:]{0,60}:\s",
    re.IGNORECASE,
)
# A number of a question that counts nothing: neither `3 weeks` nor `2.5`, `May 2`, `$2`, `2 %`.
_BARE = re.compile(
    r"(?<![\d.,/:$€£%+*=<>-])(?<!\w)(\d{1,4})(?!\w|[.,:/]\d|[ \u00a0-]?(?:[%€$£°+*/=<>]"
    r"|(?!and\b|or\b|und\b|oder\b|et\b|ou\b|y\b|o\b|vs\b|says?\b|to\b|is\b|does\b)[^\W\d_]{2,}))"
)
# And behind it: `Document 2 of the lease`, `[2] in my thesis`.
_OF = re.compile(r"\]?\*{0,3} ?of\b|\]?/|\]? (?:in|from) (?:my|our)\b")
_SEVERAL = re.compile(r"[\[【［]\d+[ ]?[,;、，；]")
_JSON = re.compile(r"\s*(?:\{|\[[ \n]*[\[{\"])")
_DIGIT = re.compile(r"[0-9]")
_MAX_LINE = 400  # characters of a question that is asked, not pasted
_MAX_QUESTION = 2000  # characters of a user's text in which numbers are replaced
# Fields that prescribe the form of an answer, or report its tokens.
_FORMS = ("response_format", "structured_outputs", "text_format", "output_config", "output_format")
_GUIDED = ("json_schema", "regex", "ebnf", "structural_tag")  # and `guided_...`
_TOKENS = ("logprobs", "return_logprob", "return_token_ids", "echo")
_FREE = (None, "text", "auto", "none")  # types of a form, or of the choice of a tool


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of one list.

    Args:
        numbers: of the places.
        words: that the labels have before a number.
        gaps: between word and number.
        stays: answers cannot be given back with the client's numbers, or its text names one, so
            that its documents stay in the client's order unless they were moved before.
        others: later lists with numbers of their own.
        tags: pattern of the names of the documents' elements.
    """

    numbers: tuple[str, ...]
    words: tuple[str, ...]
    gaps: tuple[str, ...]
    stays: bool = False
    others: OtherLists = ALONE
    tags: str = ""

    def places(self, order: Sequence[int]) -> CitationMap:
        """Return the places' numbers for the client's; `order` holds the client's place of the
        document at each place."""
        numbers = {self.numbers[i]: self.numbers[at] for at, i in enumerate(order)}
        return CitationMap(numbers, self.words, self.gaps)

    def is_named(self, text: str, *, is_asked: bool = False) -> bool:
        """Return True if a text may name a document by its number, other than to say how to cite,
        or asks to cite in a form that is not mapped.

        Args:
            is_asked: it is a short text of the user, in which any number may do so that counts
                nothing.
        """
        lines = [line for _, line in naming_lines(text) if _DIGIT.search(line)]
        if asks_other_form(text, self.words, self.gaps, self.tags):
            return True
        if not lines:
            return False
        words = "|".join(map(re.escape, sorted({*self.words, *SYNONYMS, *_NAMES})))
        named = re.compile(
            rf"(?:(?<![^\W\d_])(?:{words})(?:s|es|e|en|n)?(?:(?<=doc|ref)\.)?[ \u00a0_-]?"
            rf"(?:#|no\.?|nr\.?|number|№|id)?[ \u00a0]?[=:]?[ ]?[\"'(\[*]{{0,3}}"
            rf"|(?<!\w)id ?[=:] ?[\"']?|(?<![#\w&])#"
            rf"|(?<![\w\])])[\[【［](?:[^\[\]\n]{{0,20}}?[ ,;])?)(\d{{1,6}})(?![0-9A-Za-z_])",
            re.IGNORECASE,
        )
        numbers = frozenset(self.numbers)
        patterns = (named, _BARE) if is_asked else (named,)
        return any(
            number in numbers
            for line in lines
            for pattern in patterns
            for number in pattern.findall(line)
        )

    def moved(self, order: Sequence[int]) -> CitationMap | None:
        """Return the places' numbers for the client's; None if none moved."""
        return self.places(order) if list(order) != list(range(len(self.numbers))) else None

    def answer_map(self, order: Sequence[int]) -> CitationMap | None:
        """Return the client's numbers for the places', for an answer; None if none moved, or other
        lists have the same."""
        moved = self.moved(order)
        mapped = moved.beside(self.others) if moved is not None else None
        return mapped.of_answers.inverse if mapped is not None else None

    def beside(self, group: TextGroup) -> OtherLists:
        """Return what cites another list of documents."""
        other = numbering_of(group)
        words = other.words if other is not None else self.words
        return OtherLists(True, frozenset(map(str.lower, words)))


def numbering_of(group: TextGroup) -> Numbering | None:
    """Return the numbers of a list; None if answers cannot cite them as they are written."""
    numbers = tuple(map(group.number, range(len(group.blocks))))
    if not all(map(_NUMBER.fullmatch, numbers)):
        return None
    block = group.blocks[0]
    before = group.value[block.start : block.numbers[0][0]]
    if group.is_json or before.lstrip().startswith(("{", '"')):
        return Numbering(numbers, (), ())
    if (tag := _TAG.search(before)) is not None:
        return Numbering(numbers, (tag[1],), (), tags="|".join(sorted(set(_TAG.findall(before)))))
    word = _WORD.search(before)
    return Numbering(numbers, (word[1],), (word[2],)) if word else Numbering(numbers, (), ())


def is_answer_fixed(body: Mapping[str, Any]) -> bool:
    """Return True if numbers cannot be replaced in the answer: its tokens are reported, its form is
    prescribed, it repeats the prompt, or the backend keeps it for a later turn."""
    names = [name for name in body if name in (*_TOKENS, *_GUIDED) or name.startswith("guided_")]
    if any(body[name] is not None and body[name] is not False for name in names):
        return True
    text = body.get("text")
    forms = [
        *map(body.get, (*_FORMS, "tool_choice")),
        text.get("format") if isinstance(text, dict) else None,
    ]
    kinds = [form.get("type") if isinstance(form, dict) else form for form in forms]
    if any(kind not in _FREE for kind in kinds):
        return True
    return "input" in body and body.get("store") is not False


@dataclass(frozen=True, slots=True)
class TextBehind:
    """A part of a text behind the list, in which its numbers may be cited."""

    path: Path
    text: str
    start: int = 0  # in the value at `path`
    is_question: bool = False  # else the model wrote it
    others: OtherLists = ALONE  # up to it

    @property
    def message(self) -> int:
        return int(self.path[1])

    def edits(self, citations: CitationMap) -> list[Edit]:
        """Return the replacements that write the places' numbers."""
        if (mapped := citations.beside(self.others)) is None:
            return []
        is_asked = self.is_question
        found = _of_question(self.text, mapped) if is_asked else mapped.of_answers.edits(self.text)
        return [Edit(self.start + e.start, self.start + e.end, e.new) for e in found]


@dataclass(slots=True)
class Behind:
    """The texts behind a list, and what they and those around it tell."""

    texts: list[TextBehind] = field(default_factory=list)
    others: OtherLists = ALONE
    has_other: bool = False
    is_named: bool = False  # a text of the client names a document, and that is not mapped


def texts_behind(
    body: Mapping[str, Any],
    slots: Sequence[Slot],
    groups: Mapping[Path, Sequence[Group]],
    leading: Slot,
    group: TextGroup,
    *,
    numbering: Numbering,
    others: Sequence[Slot],
) -> Behind:
    """Return the client's and the model's texts behind a list, and what they tell about it.

    Args:
        groups: the lists of each text.
        leading: the text of the list, which is `group`.
        others: texts that have lists with numbers, or may have.
    """
    found, end, is_behind = Behind(), group.blocks[-1].end, False
    answers = _answers_behind(body, _message(leading, message_list(body)))
    first = answers[0].message if answers else None
    for slot in slots:
        is_leading = slot.path == leading.path
        at = _message(slot, message_list(body))
        _add_answers(found, answers, end=at)
        own = groups.get(slot.path, ())
        if not is_behind:
            inner = [g for g in own if not is_leading or g.blocks[0].start < end]
            parts = _outside(slot, inner, start=0)
            parts = parts[: len(inner)] if is_leading else parts
            found.has_other |= slot in others
            found.is_named |= not slot.is_tool and any(numbering.is_named(p.text) for p in parts)
            if not is_leading:
                continue
            is_behind = True
        inner = [g for g in own if not is_leading or g.blocks[0].start >= end]
        parts = _outside(slot, inner, start=end if is_leading else 0)
        marked = _other_marks if is_leading else _other_list
        marks = list(map(marked, (part.text for part in parts)))
        marks += [numbering.beside(g) for g in inner if isinstance(g, TextGroup) and g.is_numbered]
        is_other = slot in others or any(marks)
        for mark in filter(None, marks):
            found.others = found.others.joined(mark)
        # What is said behind the first answer decides nothing: the engine has the list.
        is_later = first is not None and at > first
        found.has_other |= is_other and not is_later
        # A record of another kind may stand behind documents that are JSON, and one more document
        # behind those that traffic has shown.
        is_open = is_leading and (group.is_json or group.frame == EVIDENCE)
        is_short = sum(len(part.text) for part in parts) <= _MAX_QUESTION
        is_asked = slot.is_user and is_short and not is_open and not is_other
        if not (slot.is_tool or is_later):
            found.is_named |= any(
                numbering.is_named(part.text, is_asked=slot.is_user and is_short) for part in parts
            )
        if is_asked:
            found.texts += [replace(p, is_question=True, others=found.others) for p in parts]
    _add_answers(found, answers, end=None)
    return found


def later_texts(body: Mapping[str, Any], first: int) -> Behind:
    """Return what the user and the model say in the messages behind one, whose list was moved."""
    found, answers = Behind(), _answers_behind(body, first)
    field = message_list(body)
    for slot in find_slots(body):
        if (at := _message(slot, field)) <= first or not isinstance(slot.value, str):
            continue
        _add_answers(found, answers, end=at)
        if (marks := _other_list(slot.value)) is not None:
            found.others = found.others.joined(marks)
        elif slot.is_user and len(slot.value) <= _MAX_QUESTION:
            found.texts.append(
                TextBehind(slot.path, slot.value, is_question=True, others=found.others)
            )
    _add_answers(found, answers, end=None)
    return found


def _message(slot: Slot, field: str) -> int:
    return slot.place if slot.path[0] == field and slot.place is not None else -1


def _add_answers(found: Behind, answers: deque[TextBehind], *, end: int | None) -> None:
    """Add the answers before a message, or all that are left."""
    while answers and (end is None or answers[0].message < end):
        found.texts.append(replace(answers.popleft(), others=found.others))


def _other_list(text: str) -> OtherLists | None:
    """Return what cites a list of another message: `1.` before paragraphs counts documents, as far
    as anybody can tell, and before less the points of a question."""
    marks, numbers = _other_marks(text), _POINT.findall(text)
    if not ({"1", "2"}.issubset(numbers) and len(text) >= len(numbers) * _MIN_PARAGRAPH):
        return marks
    return (marks or ALONE).joined(OtherLists(True))


def _other_marks(text: str) -> OtherLists | None:
    """Return what cites a list that is no list of documents; None if there is none."""
    if not _LISTED.search(text):
        return None
    marks = list(_MARKS.finditer(text))
    named = (mark["tag"] or mark["word"] for mark in marks)
    words = frozenset(word.lower() for word in named if word)
    has_brackets = any(mark["bracket"] or mark["tag"] for mark in marks)
    is_cited = has_brackets or not words.isdisjoint(SYNONYMS) or re.search(_COUNTED, text)
    return OtherLists(bool(is_cited), words)


def _of_question(text: str, citations: CitationMap) -> list[NumberEdit]:
    """Return the replacements in a question: of what names a document of the list for certain."""
    edits = replace(citations.of_answers, has_colons=False).edits(text)
    if not edits or _JSON.match(text) is not None:
        return []
    if _SEVERAL.search(text):  # maybe vectors, so that no bracket is certain
        edits = [edit for edit in edits if text[edit.start - 1] not in "[【［,; "]
    if (given := _GIVEN.search(text)) is not None:
        edits = [edit for edit in edits if edit.start < given.end()]
    asked = [(at, at + len(line)) for at, line in naming_lines(text) if len(line) <= _MAX_LINE]
    quoted = [each.span() for each in _QUOTED.finditer(text)]
    return [
        edit
        for edit in edits
        if any(start <= edit.start < end for start, end in asked)
        and not any(start < edit.start < end for start, end in quoted)
        and not _OWN.search(text, max(0, edit.start - 64), edit.start)
        and not _OF.match(text, edit.end)
    ]


def _answers_behind(body: Mapping[str, Any], first: int) -> deque[TextBehind]:
    """Return what the model wrote in the messages behind one."""
    field = message_list(body)
    messages = body[field] if field else ()
    return deque(
        TextBehind(text.path, text.text)
        for at in range(first + 1, len(messages))
        for text in assistant_texts(messages[at], (field, at))
    )


def _outside(slot: Slot, groups: Sequence[Group], *, start: int) -> list[TextBehind]:
    """Return the parts of a text, from an offset on, that are no documents."""
    text, at, parts = slot.value, start, list[TextBehind]()
    if not isinstance(text, str):
        return []
    for group in groups:
        parts.append(TextBehind(slot.path, text[at : group.blocks[0].start], at))
        at = group.blocks[-1].end
    return [*parts, TextBehind(slot.path, text[at:], at)]
