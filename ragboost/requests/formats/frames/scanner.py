"""Scan a text once for lists of documents: all kinds of frames, the outermost of which count."""

from collections.abc import Sequence
from typing import NamedTuple

from ragboost.config import FrameSettings
from ragboost.requests.formats.frames import custom, elements, fences, headers, labels, literals
from ragboost.requests.formats.frames.candidate import Candidate, HiddenParts, outermost
from ragboost.requests.formats.frames.containers import Surroundings
from ragboost.requests.formats.frames.not_documents import is_work
from ragboost.requests.formats.frames.sequences import are_in_sequence, is_in_sequence
from ragboost.requests.formats.frames.siblings import Wrappers, find_tags
from ragboost.requests.formats.frames.spans import LineMatch
from ragboost.requests.formats.groups import TextGroup
from ragboost.requests.formats.instructions.asked_order import WORK
from ragboost.requests.formats.instructions.questions import Question

ABOVE = "what stands above them, or how they begin, says that their order is content"


class Scan(NamedTuple):
    """The lists of documents in a text, and a list that is left alone."""

    groups: tuple[TextGroup, ...] = ()
    marks: tuple[int, ...] = ()  # where the documents of an open list begin, or steps
    numbers: tuple[tuple[int, int], ...] = ()  # their digits, if the marks count them
    frame: str = ""  # of the open or the ambiguous list
    problem: str = ""  # why a list is left alone; empty if none is
    order: str = ""  # why the order of one may be its content


def may_hold_list(text: str, *, is_tool: bool) -> bool:
    """Return False for a plain question: one line without elements."""
    return is_tool or "\n" in text or ("<" in text and "</" in text)


def scan(
    text: str,
    *,
    frames: Sequence[FrameSettings] = (),
    is_tool: bool = False,
    question: Question = Question.NONE,
) -> Scan:
    """Find the lists of two documents or more.

    Args:
        frames: the operator's own.
        is_tool: the text is a tool's result, so that it holds nothing else.
        question: whether the user's may follow the documents.
    """
    if not (frames or may_hold_list(text, is_tool=is_tool)):
        return Scan()
    code = fences.fences(text)
    own = [each for frame in frames for each in custom.find(text, frame)]
    chosen = (
        own
        if any(each.blocks for each in own)
        else _candidates(text, code, is_tool, question) + own
    )
    chosen = [_checked(text, each) for each in outermost(chosen)]
    found = [fences.opened(text, code, each) for each in chosen if each.blocks]
    groups = [each.group(text) for each in found if each is not None]
    left = next((each for each in chosen if each.problem), None)
    if left is None:
        if groups:
            return Scan(tuple(groups))
        kept = next((c for c in chosen if c.order and not fences.is_in_code(code, c.start)), None)
        steps = labels.steps(text, HiddenParts(chosen))
        return Scan((), *steps, *((kept.frame, "", kept.order) if kept is not None else ()))
    if groups:
        return Scan(tuple(groups), frame=left.frame, problem=left.problem)
    return Scan((), left.marks, left.numbers, left.frame, left.problem)


def _checked(text: str, found: Candidate) -> Candidate:
    if not found.blocks or found.frame.startswith("<") or not is_work(text, found.start, found.end):
        return found
    return Candidate(found.start, found.end, found.frame, problem=WORK)


def _candidates(
    text: str, code: Sequence[LineMatch], is_tool: bool, question: Question
) -> list[Candidate]:
    strings = list(literals.find(text, is_tool=is_tool))
    tags = find_tags(text)
    wrappers = Wrappers(text, tags)
    # An uncertain literal may reach over several elements.
    certain = HiddenParts([each for each in strings if not each.problem])
    tagged = elements.find(text, tags, certain, wrappers)
    explicit = [*strings, *tagged, *fences.find(text, code)]
    hidden = HiddenParts([each for each in explicit if not each.problem])
    around = Surroundings(text, wrappers, hidden)
    found = [
        *explicit,
        *labels.find(text, hidden, around, is_closed=is_tool, question=question),
        *headers.find(text, hidden, around, is_closed=is_tool),
    ]
    return [
        each._replace(blocks=(), order=ABOVE) if each.blocks and _is_sequence(text, each) else each
        for each in found
    ]


def _is_sequence(text: str, found: Candidate) -> bool:
    if is_in_sequence(text, found.start):
        return True
    blocks = found.blocks
    texts = [block.text or text[block.text_start : block.text_end] for block in blocks]
    return are_in_sequence(texts, [block.name for block in blocks])
