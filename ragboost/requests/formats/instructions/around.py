"""Read the texts around a list: a question may follow it, or its order may matter."""

import re
from collections import Counter
from collections.abc import Sequence

from ragboost.requests.formats.frames.not_documents import holds_documents
from ragboost.requests.formats.groups import Group, TextGroup
from ragboost.requests.formats.instructions.asked_order import COUNTED, asked_order
from ragboost.requests.formats.instructions.questions import Question, announces_question
from ragboost.requests.formats.notes import cites_numbers
from ragboost.requests.wires.body import Slot
from ragboost.util.bounded_map import Generations

_OPENER = re.compile(r"<([^\W\d][\w.:-]{0,63})>\s*\Z")
_MAX_OPENER = 80
_MAX_ASKED = 1000  # characters of a question
_MAX_KNOWN = 4096  # texts that were read, and as many older ones


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


def why_it_stays(
    slots: Sequence[Slot], of: Slot, group: Group, *, known: Generations[int, str]
) -> str:
    """Return why a list is not ordered, though it is found; empty if it may be.

    The text around the list tells, a message before it, or what stands between it and the first
    answer. Later ones tell nothing: the engine has the list.

    Args:
        known: what texts were found to ask, by their hashes: templates return.
    """
    read = texts_up_to_the_answer(slots, of)
    if isinstance(group, TextGroup):
        read += group.around()
    if not group.is_numbered and any(map(cites_numbers, read)):
        return COUNTED  # numbers in answers are mapped only where the documents have them
    return next(filter(None, (_asked(text, known) for text in read)), "")


def texts_up_to_the_answer(slots: Sequence[Slot], of: Slot) -> list[str]:
    """Return the texts before a list's own, and those behind it up to the first answer, of users
    if they are short: a long one holds more than a question."""
    at = next(i for i, slot in enumerate(slots) if slot.path == of.path)
    texts, place = [*slots[:at]], of.place
    for slot in slots[at + 1 :]:
        if slot.is_tool or (slot.place or 0) > (place or 0) + 1:
            break  # no texts are those of the answer's message
        place = slot.place
        if not slot.is_user or len(slot.value) <= _MAX_ASKED:
            texts.append(slot)
    return [slot.value for slot in texts if isinstance(slot.value, str) and not slot.is_tool]


def _asked(text: str, known: Generations[int, str]) -> str:
    key = hash(text)
    reason = known.get(key)
    if reason is None:
        known.newer[key] = reason = asked_order(text)
        if len(known.newer) >= _MAX_KNOWN:
            known.turn()
    return reason


def are_held(before: str, after: str) -> bool:
    """Return True if what stands around a list is an element whose name says document."""
    opener = _OPENER.search(before, max(0, len(before) - _MAX_OPENER))
    if opener is None or not after[:_MAX_OPENER].lstrip().startswith(f"</{opener[1]}>"):
        return False
    return holds_documents(opener[1])
