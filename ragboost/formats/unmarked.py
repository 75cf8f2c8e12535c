"""Documents that only blank lines separate, as LangChain's `"\\n\\n".join(page_content)` does.

With `formats.learn_boundaries` they are found once their boundaries are learnt; until then, only
that there seem to be any is said.
"""

import re
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from ragboost.config import Settings
from ragboost.formats.documents import DocumentPool, FoundDocuments, UnknownShapeError
from ragboost.formats.groups import DocumentBlock, TextGroup, hint_name
from ragboost.formats.learnt_boundaries import BoundaryLearner, Span
from ragboost.formats.messages import Messages
from ragboost.formats.text.frames import find_frames
from ragboost.wires.body import Slot, find_slots, message_list
from ragboost.wires.registry import ANY

_INTRO_CHARS = 400
_MIN_PARAGRAPHS = 3
_MIN_CHARS = 600
_MIN_SEARCHED = 16_384  # where looking for the words is faster than for blank lines
_NUM_NAME_WORDS = 6
_ANNOUNCED = ("context", "document", "passage", "source", "excerpt", "information")
_INTRO = re.compile(
    r"\b(?:following|retrieved|given|provided|below|these)\b[^\n]{0,60}?"
    rf"\b(?:{'|'.join(_ANNOUNCED)})s?\b|\bcontext information\b|<(?:context|documents)>"
)


class UnmarkedDocumentsError(UnknownShapeError):
    """The body seems to hold documents, but not where each one ends."""


class UnmarkedDocuments(Messages):
    """Documents without boundaries at the front of a payload, for bodies without any other.

    Args:
        learner: of their boundaries; None: they are only noticed.
    """

    name = "unmarked"

    def __init__(
        self, settings: Settings, *, pool: DocumentPool, learner: BoundaryLearner | None = None
    ) -> None:
        super().__init__(settings, pool=pool)
        self._is_on = settings.formats.in_text and settings.ordering.enabled
        self._learner = learner

    def find(self, body: Mapping[str, Any], *, tenant: str) -> FoundDocuments | None:
        """Find documents whose boundaries the requests of this tenant have taught.

        Raises:
            UnmarkedDocumentsError: there seem to be documents, but their boundaries are not known.
        """
        texts = _leading_texts(body) if self._is_on else []
        if self._learner is not None:
            is_first_turn = not _has_answers(body)
            for slot, text in texts:
                if spans := self._learner.cut(text, tenant=tenant, is_first_turn=is_first_turn):
                    return self._leading(slot, _group(text, spans))
        if any(_seems_unmarked(text) for _, text in texts):
            raise UnmarkedDocumentsError(
                "these look like documents without boundaries: wrap the retriever (two lines), or "
                "learn where they end (formats.learn_boundaries)"
            )
        return None


def _leading_texts(body: Mapping[str, Any]) -> list[tuple[Slot, str]]:
    slots = takewhile(lambda slot: slot.is_leading, find_slots(body))
    return [(slot, slot.value) for slot in slots if isinstance(slot.value, str)]


def _has_answers(body: Mapping[str, Any]) -> bool:
    """Return True if the body resends earlier turns, or may do so inside a `prompt`."""
    roles = (*ANY.instruction_roles, "user")
    name = message_list(body)
    is_plain = all(isinstance(m, dict) and m.get("role") in roles for m in body.get(name, ()))
    return not (name and is_plain)


def _group(text: str, spans: tuple[Span, ...]) -> TextGroup:
    blocks = tuple(
        [
            DocumentBlock(*span, text[slice(*span)], *span, None, name=_name(text, *span))
            for span in spans
        ]
    )
    return TextGroup(text, blocks, blocks[-1].end)


def _name(text: str, start: int, end: int) -> str:
    words = text[start : min(end, start + _INTRO_CHARS)].split(None, _NUM_NAME_WORDS)
    return hint_name(" ".join(words[:_NUM_NAME_WORDS]))


def _seems_unmarked(text: str) -> bool:
    """Return True for several paragraphs behind words that announce documents, or two in a frame.

    Looks at the beginning of a text first: most long texts have no such words.
    """
    if len(text) < _MIN_SEARCHED and "\n\n" not in text:
        return False
    begin = text[:_INTRO_CHARS].lower()
    if not any(word in begin for word in _ANNOUNCED) or _INTRO.search(begin) is None:
        return False
    if len(text) >= _MIN_CHARS and text.count("\n\n") >= _MIN_PARAGRAPHS:
        return True
    frame = next(find_frames(text), None)
    return frame is not None and text.find("\n\n", frame.start, frame.end) >= 0
