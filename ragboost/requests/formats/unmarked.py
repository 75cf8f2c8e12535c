"""Documents whose ends the text does not show: found by evidence from traffic, or named.

Knows which text of a request may hold them. Does not know how evidence is gathered.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ragboost.config import Settings
from ragboost.requests.formats.documents import (
    AmbiguousDocumentsError,
    OrderedDocumentsError,
    UnmarkedDocumentsError,
)
from ragboost.requests.formats.evidence.evidence import DocumentSpan, Evidence
from ragboost.requests.formats.frames import Scan
from ragboost.requests.formats.groups import EVIDENCE, DocumentBlock, TextGroup, hint_name
from ragboost.requests.formats.instructions.asked_order import WORK
from ragboost.requests.wires.body import Slot, message_list
from ragboost.requests.wires.registry import ANY

_INTRO_CHARS = 400
_MIN_CHARS = 600
_MANY_CHARS = 8_000
_MIN_LINES = 3
_NUM_NAME_WORDS = 6
_DIGITS = re.compile(r"\d+")
_ANNOUNCED = re.compile(
    r"\b(?:following|retrieved|given|provided|below|these|attached)\b[^\n]{0,60}?"
    r"\b(?:context|document|passage|source|excerpt|information|file|chunk|reference)s?\b"
    r"|\bcontext information\b|\bknowledge base\b|<\w*(?:context|documents|reference|knowledge)\w*>"
    r"|已知信息|以下文档|以下资料|参考资料|知识库|資料|コンテキスト|kontext|dokument|contexte|documents|contexto",
    re.IGNORECASE,
)


class UnmarkedDocuments:
    """Documents in first messages that hold no list with certain boundaries.

    Args:
        evidence: None: such documents are only named.
    """

    def __init__(self, settings: Settings, *, evidence: Evidence | None = None) -> None:
        self._is_on = settings.formats.in_text and settings.ordering.enabled
        self._evidence = evidence

    def cut(
        self,
        body: Mapping[str, Any],
        slots: Sequence[Slot],
        scans: Sequence[Scan],
        *,
        tenant: str,
        learns: bool,
    ) -> tuple[Slot, TextGroup] | None:
        """Find documents whose boundaries the requests of this tenant have taught.

        Args:
            learns: from this one, too.
        """
        if self._evidence is None or not self._is_on:
            return None
        is_first_turn, is_prompt = not _has_answers(body), not message_list(body)
        for slot, result in zip(slots, scans, strict=True):
            if not slot.is_leading:
                break
            if isinstance(slot.value, str) and "\n" in slot.value:
                spans = self._evidence.cut(
                    slot.value,
                    tenant=tenant,
                    is_first_turn=is_first_turn,
                    is_prompt=is_prompt,
                    marks=result.marks,
                    learns=learns,
                )
                if spans:
                    return slot, _group(slot.value, spans, result)
        return None

    def name_what_is_left(self, slots: Sequence[Slot], scans: Sequence[Scan]) -> None:
        """Say why documents in the first messages are left alone.

        Raises:
            AmbiguousDocumentsError: there is a list whose boundaries are not certain.
            OrderedDocumentsError: there is one whose order may be its content.
            UnmarkedDocumentsError: there seem to be documents without boundaries.
        """
        leading = [pair for pair in zip(slots, scans, strict=True) if pair[0].is_leading]
        for slot, result in leading if self._is_on else ():
            if result.marks and result.problem:
                raise UnmarkedDocumentsError(
                    f"the last document in the frame {result.frame!r} has no certain end: put the "
                    "list into a tag, or wait until documents return (formats.evidence)",
                    frame=result.frame,
                )
            if result.problem and result.problem != WORK:
                raise AmbiguousDocumentsError(result.frame, result.problem)
            if order := result.problem or result.order:
                raise OrderedDocumentsError(result.frame, order)
            if isinstance(slot.value, str) and _seems_unmarked(slot.value):
                raise UnmarkedDocumentsError(
                    f"about {len(slot.value) // 4:,} tokens in one message look like documents "
                    "without boundaries: put each into a tag, wrap the retriever (two lines), or "
                    "wait until documents return (formats.evidence)"
                )


def _has_answers(body: Mapping[str, Any]) -> bool:
    """Return True if messages of the body resend earlier turns."""
    roles = (*ANY.instruction_roles, "user")
    messages = body[name] if (name := message_list(body)) else ()
    return not all(isinstance(m, dict) and m.get("role") in roles for m in messages)


def _group(text: str, spans: Sequence[DocumentSpan], scan: Scan) -> TextGroup:
    numbers = dict(zip(scan.marks, scan.numbers, strict=False))
    is_counted = all(span.start in numbers for span in spans)
    blocks = []
    for start, end, label in spans:
        found = _DIGITS.search(text, label, start) if label >= 0 else None
        digits = found.span() if found is not None else numbers[start] if is_counted else None
        first, name = start if found is None else label, _name(text, start, end)
        places = () if digits is None else (digits,)
        blocks.append(DocumentBlock(first, end, text[start:end], start, end, places, name))
    # Whatever follows the last of them may be one more document: a note stands at the end.
    return TextGroup(text, tuple(blocks), len(text), frame=EVIDENCE)


def _name(text: str, start: int, end: int) -> str:
    words = text[start : min(end, start + _INTRO_CHARS)].split(None, _NUM_NAME_WORDS)
    return hint_name(" ".join(words[:_NUM_NAME_WORDS]))


def _seems_unmarked(text: str) -> bool:
    """Return True for several lines behind words that announce documents, or very many."""
    if len(text) < _MIN_CHARS or "\n" not in text or text.count("\n") < _MIN_LINES:
        return False
    return len(text) >= _MANY_CHARS or _ANNOUNCED.search(text[:_INTRO_CHARS]) is not None
