"""Read the texts around a list: a question may follow it, or its order may matter."""

import itertools
import re
from collections import Counter
from collections.abc import Sequence

from ragboost.requests.formats.frames import PLACES, WORK
from ragboost.requests.formats.frames.not_documents import holds_documents, is_work_instructed
from ragboost.requests.formats.groups import Group, TextGroup
from ragboost.requests.formats.questions import (
    Question,
    announces_question,
    names_places,
)
from ragboost.requests.wires.body import Slot

_OPENER = re.compile(r"<([^\W\d][\w.:-]{0,63})>\s*\Z")
_MAX_OPENER = 80


def questions(slots: Sequence[Slot]) -> dict[int | None, Question]:
    """Return what is known of the messages that may end with a question: users' of one text, behind
    no other."""
    users = [
        slot.place
        for slot in slots
        if isinstance(slot.value, str) and not slot.is_tool and slot.is_user
    ]
    num = Counter(users)
    near = {at + 1 for at in users if at is not None}  # later ones change nothing
    askers = [at for at in users if at not in near and num[at] == 1]
    is_announced = bool(askers) and any(
        isinstance(slot.value, str) and announces_question(slot.value)
        for slot in slots
        if slot.is_leading and not (slot.is_user or slot.is_tool)
    )
    return dict.fromkeys(askers, Question.ANNOUNCED if is_announced else Question.POSSIBLE)


def why_it_stays(slots: Sequence[Slot], of: Slot, group: Group) -> str:
    """Return why a list is not ordered, though it is found; empty if it may be."""
    if _is_work(slots, of, group):
        return WORK
    return PLACES if _has_places(slots, of, group) else ""


def _has_places(slots: Sequence[Slot], of: Slot, group: Group) -> bool:
    """Return True if the text around a list, a message before it, or the first question behind it
    speaks of "the second document". Later ones tell nothing: the engine has the list."""
    at = next(i for i, slot in enumerate(slots) if slot.path == of.path)
    place = of.place if of.is_user else None
    behind = [slot for slot in slots[at + 1 :] if slot.is_user and place in (None, slot.place)]
    texts = [slot.value for slot in (*slots[:at], *behind[:1]) if not slot.is_tool]
    if isinstance(group, TextGroup):
        texts += group.around()
    return any(isinstance(text, str) and names_places(text) for text in texts)


def _is_work(slots: Sequence[Slot], of: Slot, group: Group) -> bool:
    """Return True if an earlier message asks for work on each element of an untagged list."""
    if not isinstance(group, TextGroup) or group.frame.startswith("<"):
        return False
    before = itertools.takewhile(lambda slot: slot.path != of.path, slots)
    return any(isinstance(slot.value, str) and is_work_instructed(slot.value) for slot in before)


def are_held(before: str, after: str) -> bool:
    """Return True if what stands around a list is an element whose name says document."""
    opener = _OPENER.search(before, max(0, len(before) - _MAX_OPENER))
    if opener is None or not after[:_MAX_OPENER].lstrip().startswith(f"</{opener[1]}>"):
        return False
    return holds_documents(opener[1])
