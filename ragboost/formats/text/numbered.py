"""Numbered and labelled documents: `[Doc_1] ...`, `Document 1: ...`, `Source 1: ...`, `[1] ...`.

Labels begin lines and count from 0 or 1 without a gap, or are distinct ids (`[Doc_x]` only); `[1]`
may be a citation outside of a frame. A last document without an unambiguous end stays where it is.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from ragboost.formats.groups import DocumentBlock, Number, TextGroup
from ragboost.formats.text.frames import Frame
from ragboost.formats.text.spans import (
    check_number,
    code_fences,
    finds,
    is_in_code,
    strip,
)

_IDS = "[Doc_"
_MAX_LABEL = 48
_NUMBER = f"([0-9]{{1,{_MAX_LABEL}}})"
_FORMS = (  # prefix, and the name with what is behind it
    (re.escape(_IDS), rf"([\w.:~-]{{1,{_MAX_LABEL}}})\]"),
    (r"\[Doc |\[Document[_ ]|\[Source |\[Passage |Document \[|Passage \[", rf"{_NUMBER}\]"),
    ("Document |Doc |Source |Passage ", f"{_NUMBER}:"),
    ("##?# Document |### Source ", rf"{_NUMBER}(?=[:\n\r ])"),
)
_LABEL = "|".join([f"({prefix}){name}" for prefix, name in _FORMS])
_FRAMED_LABEL = rf"{_LABEL}|(\[){_NUMBER}\]"
# At the beginning of a text, and of a line: a fixed first character is found fastest.
_LABELS = re.compile(_LABEL), re.compile(f"\n(?:{_LABEL})")
_FRAMED_LABELS = re.compile(_FRAMED_LABEL), re.compile(f"\n(?:{_FRAMED_LABEL})")
_MIN_CHARS = 40  # on average, under a label without brackets
_CLOSERS = ("question", "query", "user question", "user query", "answer", "instruction", "task")


class _Label(NamedTuple):
    start: int  # of the line
    name_start: int
    name_end: int
    end: int  # after the suffix


def find(text: str, frame: Frame | None = None, *, is_closed: bool = False) -> list[TextGroup]:
    """Find one run of labelled documents.

    Args:
        frame: to search; None for the whole text.
        is_closed: nothing follows the documents in the text.
    """
    where = frame or Frame(0, len(text), len(text))
    labels, prefix = _labels(text, where, *(_FRAMED_LABELS if frame else _LABELS))
    names = [text[label.name_start : label.name_end] for label in labels]
    is_counted = _is_counted(names)
    if not is_counted and (prefix != _IDS or len(set(names)) < len(names)):
        return []
    if len(labels) < 2 or is_in_code(code_fences(text), labels[0].start):
        return []
    ends = _ends(text, labels, where, is_closed=is_closed or frame is not None)
    blocks = tuple(
        _block(text, label, end, is_counted=is_counted)
        for label, end in zip(labels, ends, strict=False)
    )
    if len(blocks) < 2 or not all(_is_prose(block.text) for block in blocks):
        return []
    is_explicit = is_closed or frame is not None or "[" in (prefix or "")
    if not is_explicit and sum(len(block.text or "") for block in blocks) < _MIN_CHARS * len(
        blocks
    ):
        return []
    end = where.close if frame else blocks[-1].end
    return [TextGroup(text, blocks, max(end, blocks[-1].end))]


def _labels(
    text: str, where: Frame, first: re.Pattern[str], later: re.Pattern[str]
) -> tuple[list[_Label], str | None]:
    found: dict[str, list[_Label]] = {}
    begin = first.match(text, where.start, where.end)
    for match in chain([begin] if begin else (), later.finditer(text, where.start, where.end)):
        name = match.lastindex or 0
        prefix, start = match[name - 1], match.start(name - 1)
        labels = found.setdefault(prefix, [])
        labels.append(_Label(start, match.start(name), match.end(name), match.end()))
        check_number(labels)
    several = [(labels[0].start, prefix) for prefix, labels in found.items() if len(labels) > 1]
    if not several:
        return [], None
    prefix = min(several)[1]
    return found[prefix], prefix


def _is_counted(names: Sequence[str]) -> bool:
    return any(names == [str(first + at) for at in range(len(names))] for first in (0, 1))


def _ends(text: str, labels: Sequence[_Label], where: Frame, *, is_closed: bool) -> list[int]:
    """Return the ends of the documents, one fewer than labels if the last one's is ambiguous."""
    starts = [label.start for label in labels[1:]]
    ends = [strip(text, label.end, start)[1] for label, start in zip(labels, starts, strict=False)]
    ends = [max(end, label.end) for end, label in zip(ends, labels, strict=False)]
    last = labels[-1].end
    if is_closed:
        return [*ends, max(last, strip(text, last, where.end)[1])]
    candidates = [_blank_line(text, labels, ends, where), *_closing_line(text, labels, ends, where)]
    unambiguous = [end for end in candidates if end is not None]
    return [*ends, max(last, strip(text, last, min(unambiguous))[1])] if unambiguous else ends


def _blank_line(
    text: str, labels: Sequence[_Label], ends: Sequence[int], where: Frame
) -> int | None:
    """Return the offset of the next separator, if no other document contains one."""
    separators = {text[end : label.start] for end, label in zip(ends, labels[1:], strict=True)}
    separator = min(separators, key=len)
    is_inside = any(
        text.find(separator, _text_start(text, label, end), end) >= 0
        for label, end in zip(labels, ends, strict=False)
    )
    if is_inside:
        return None
    last = labels[-1]
    at = text.find(separator, _text_start(text, last, where.end), where.end)
    return at if at >= 0 else None


def _text_start(text: str, label: _Label, end: int) -> int:
    return strip(text, label.end, end)[0]


def _closing_line(
    text: str, labels: Sequence[_Label], ends: Sequence[int], where: Frame
) -> list[int]:
    """Return the first line after the last document that begins the next part of a prompt; none
    if other documents have such lines, too."""
    for label, end in zip(labels, ends, strict=False):
        if _find_closer(text, label.end, end) is not None:
            return []
    closer = _find_closer(text, labels[-1].end, where.end)
    return [] if closer is None else [closer]


def _find_closer(text: str, start: int, end: int) -> int | None:
    for at in finds(text, "\n", start, end):
        if _is_closer(text[at + 1 : min(end, at + 1 + _MAX_LABEL)].partition("\n")[0]):
            return at
    return None


def _is_closer(line: str) -> bool:
    if line.startswith(("---", "===", "</")):
        return True
    head, colon, _ = line.partition(":")
    return bool(colon) and head.strip(" #*").lower().removesuffix("s") in _CLOSERS


def _block(text: str, label: _Label, end: int, *, is_counted: bool) -> DocumentBlock:
    start, stop = strip(text, label.end, end)
    prefix = text[label.start : label.name_start].lstrip("# ")
    suffix = "]" if text[label.name_end : label.name_end + 1] == "]" else ""
    number = Number(label.name_start, label.name_end, prefix, suffix) if is_counted else None
    name = prefix + text[label.name_start : label.name_end] + suffix
    return DocumentBlock(label.start, end, text[start:stop], start, stop, number, name)


def _is_prose(text: str | None) -> bool:
    """Return True for two words or more: links and names are not documents."""
    return bool(text) and len((text or "")[:1000].split(None, 1)) == 2
