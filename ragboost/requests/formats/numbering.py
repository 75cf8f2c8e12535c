"""The numbers of a list of documents, and what the client's text and its model say by them.

Numbers are places: they stay where they are when documents move. So whatever stands behind the
list, the question and the history, is written with the places' numbers, and the answer is given
back with the client's.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ragboost.requests.formats.citations import WORD, CitationMap
from ragboost.requests.formats.groups import EVIDENCE, Edit, Group, TextGroup
from ragboost.requests.formats.notes import may_cite
from ragboost.requests.wires.answer_texts import assistant_texts
from ragboost.requests.wires.body import Path, Slot, message_list

_NUMBER = re.compile(r"0|[1-9][0-9]{0,5}")
_WORD = re.compile(rf"({WORD})((?:[ \u00a0_#:：-]|\*\*)*)[\[【(（]?\Z")
_TAG = re.compile(r"<([^\W\d_]{1,40})\b")
# Two lines that begin with a number and a label's word or marks, or one that ends with a colon: a
# list that was not found.
_WORDED = r"[^\W\d_]{1,40}[ \u00a0#:：-]{0,2}\d{1,6}"
_MARK = rf"(?:{_WORDED}|[\[【(（「]{{1,2}}(?:{_WORDED}|\d{{1,6}})[\])】）」:：])"
_LABEL = rf"^[ \t#*>-]{{0,8}}(?:{_MARK}|<[^\W\d][^<>\n]{{0,80}}?=[\"']\d{{1,6}}[\"'])"
_FIELD = r'"(?:index|id|rank|position|number|n)"\s*:\s*'
_COUNTED = rf'{_FIELD}"?[01]"?\s*[,}}][\s\S]*?{_FIELD}"?[12]"?\s*[,}}]'  # objects of JSON
_LISTED = re.compile(
    rf"{_LABEL}(?:.*\n)+?{_LABEL}|^[ \t#*>-]{{0,8}}{_WORDED}.{{0,120}}[:：][ \t\r]*$|{_COUNTED}",
    re.MULTILINE,
)
_EXAMPLE = re.compile(
    r"\b(?:cit(?:e|es|ed|ing|ation|ations)|e\.g\.|examples?|zitier\w*|citez|citar?)\b|引用|标注|例如",
    re.IGNORECASE,
)
_MAX_QUESTION = 2000  # characters of a user's text in which numbers are replaced
# Fields that prescribe the form of an answer, or report its tokens.
_FORMS = ("response_format", "structured_outputs", "text_format", "output_config", "output_format")
_GUIDED = ("guided_json", "guided_regex", "guided_grammar", "json_schema", "regex", "ebnf")
_TOKENS = ("logprobs", "return_logprob", "return_token_ids", "echo")
_FREE = (None, "text", "auto", "none")  # types of a form, or of the choice of a tool


@dataclass(frozen=True, slots=True)
class Numbering:
    """The numbers of one list.

    Args:
        numbers: of the places.
        words: that the labels have before a number.
        gaps: between word and number.
        stays: answers cannot be given back with the client's numbers, so that its documents stay
            in the client's order unless they were moved before.
        maps_answer: no later list has numbers of its own.
    """

    numbers: tuple[str, ...]
    words: tuple[str, ...]
    gaps: tuple[str, ...]
    stays: bool = False
    maps_answer: bool = True

    def places(self, order: Sequence[int]) -> CitationMap:
        """Return the places' numbers for the client's; `order` holds the client's place of the
        document at each place."""
        numbers = {self.numbers[i]: self.numbers[at] for at, i in enumerate(order)}
        return CitationMap(numbers, self.words, self.gaps)

    def refers(self, text: str) -> bool:
        """Return True if a text cites a number of the list."""
        num = len(self.numbers)
        return bool(self.places([(at + 1) % num for at in range(num)]).edits(text))

    def answer_map(self, order: Sequence[int]) -> CitationMap | None:
        """Return the client's numbers for the places', for an answer; None if none moved."""
        is_moved = list(order) != list(range(len(self.numbers)))
        return self.places(order).inverse if is_moved and self.maps_answer else None


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
        return Numbering(numbers, (tag[1],), ())
    word = _WORD.search(before)
    return Numbering(numbers, (word[1],), (word[2],)) if word else Numbering(numbers, (), ())


def is_answer_fixed(body: Mapping[str, Any]) -> bool:
    """Return True if numbers cannot be replaced in the answer: its tokens are reported, its form is
    prescribed, it repeats the prompt, or the backend keeps it for a later turn."""
    if any(body.get(name) is not None and body[name] is not False for name in (*_TOKENS, *_GUIDED)):
        return True
    text = body.get("text")
    forms = [
        *map(body.get, (*_FORMS, "tool_choice")),
        text.get("format") if isinstance(text, dict) else None,
    ]
    kinds = [form.get("type") if isinstance(form, dict) else form for form in forms]
    if any(kind not in _FREE for kind in kinds):
        return True
    return message_list(body) == "input" and body.get("store") is not False


def form_cites(body: Mapping[str, Any]) -> bool:
    """Return True if the form that the client prescribes lets the model cite."""
    forms = [body.get(name) for name in (*_FORMS, *_GUIDED, "tools", "text")]
    return any(may_cite(json.dumps(form)) for form in forms if form)


def asks_for_number(numbering: Numbering, text: str) -> bool:
    """Return True if a question in the text before the list names one of its documents."""
    lines = text[-_MAX_QUESTION:].splitlines()
    return any(numbering.refers(line) for line in lines if "?" in line or "？" in line)


@dataclass(frozen=True, slots=True)
class TextBehind:
    """A part of a text behind the list, in which its numbers may be cited."""

    path: Path
    text: str
    start: int = 0  # in the value at `path`

    def edits(self, citations: CitationMap) -> list[Edit]:
        found = citations.edits(self.text)
        return [Edit(self.start + e.start, self.start + e.end, e.new) for e in found]


def texts_behind(
    body: Mapping[str, Any],
    slots: Sequence[Slot],
    groups: Mapping[Path, Sequence[Group]],
    leading: Slot,
    group: TextGroup,
    *,
    others: Sequence[Slot],
) -> tuple[list[TextBehind], bool]:
    """Return the client's and the model's texts behind a list, up to another list with numbers, and
    whether there is another one.

    Args:
        groups: the lists of each text.
        leading: the text of the list, which is `group`.
        others: texts that have lists with numbers, or may have.
    """
    texts, stop, end = list[TextBehind](), None, group.blocks[-1].end
    is_behind = False
    for slot in slots:
        is_leading = slot.path == leading.path
        is_behind = is_behind or is_leading
        inner = [g for g in groups.get(slot.path, ()) if not is_leading or g.blocks[0].start >= end]
        parts = _outside(slot, inner, start=end if is_leading else 0) if is_behind else []
        if slot in others or (is_behind and any(_LISTED.search(part.text) for part in parts)):
            stop = slot
            break
        is_short = sum(len(part.text) for part in parts) <= _MAX_QUESTION
        # A record of another kind may stand behind documents that are JSON, and one more document
        # behind those that traffic has shown.
        is_open = group.is_json or group.frame == EVIDENCE
        if slot.is_user and is_short and not (is_leading and is_open):
            texts += [line for part in parts for line in _asking(part)]
    return [*texts, *_answers_behind(body, leading, stop=stop)], stop is not None


def _asking(part: TextBehind) -> Iterator[TextBehind]:
    """Yield the lines that do not say how to cite: numbers in these are examples."""
    at = part.start
    for line in part.text.splitlines(keepends=True):
        if not _EXAMPLE.search(line):
            yield TextBehind(part.path, line, at)
        at += len(line)


def _answers_behind(body: Mapping[str, Any], slot: Slot, *, stop: Slot | None) -> list[TextBehind]:
    """Return what the model wrote in the messages behind a slot's, up to another one's."""
    field = message_list(body)
    messages = body[field] if field else ()
    first = _message(slot, field) + 1
    last = len(messages) if stop is None else max(first, _message(stop, field))
    return [
        TextBehind(text.path, text.text)
        for at in range(first, last)
        for text in assistant_texts(messages[at], (field, at))
    ]


def _message(slot: Slot, field: str) -> int:
    at = slot.path[1] if slot.path[0] == field and len(slot.path) > 1 else -1
    return at if isinstance(at, int) else -1


def _outside(slot: Slot, groups: Sequence[Group], *, start: int) -> list[TextBehind]:
    """Return the parts of a text, from an offset on, that are no documents."""
    text, at, parts = slot.value, start, list[TextBehind]()
    if not isinstance(text, str):
        return []
    for group in groups:
        parts.append(TextBehind(slot.path, text[at : group.blocks[0].start], at))
        at = group.blocks[-1].end
    return [*parts, TextBehind(slot.path, text[at:], at)]
