"""A run of documents inside a text or a list of content blocks, and how it is written anew.

What stands between two documents belongs to the place, not to a document, so that a document's
bytes are the same wherever it stands. Knows no shape in particular.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ragboost.types import Document

Value = str | list[Any]
"""What holds documents: a text, or a list of content blocks or results."""


class Number(NamedTuple):
    """A number that a document has by its position.

    Attributes:
        start: offset of the first digit in the text.
        end: offset behind the last digit.
        prefix: what hints write before it, such as `[Doc_`.
        suffix: what hints write behind it.
    """

    start: int
    end: int
    prefix: str
    suffix: str


class DocumentBlock(NamedTuple):
    """One document with its marks.

    Attributes:
        start: offset in the text, or index in the list.
        end: behind the last character or element.
        text: the text proper, without marks and attributes; None if it cannot be told.
        text_start: offset of the text proper; unused in lists.
        text_end: behind the text proper; unused in lists.
        number: its positional number, or None.
        name: what hints may call it; empty if it has no name.
    """

    start: int
    end: int
    text: str | None = None
    text_start: int = 0
    text_end: int = 0
    number: Number | None = None
    name: str = ""


class Edit(NamedTuple):
    """Replaces the part of a value between two offsets."""

    start: int
    end: int
    new: Any


class Group(Protocol):
    """Documents that stand together and may change places with each other.

    Attributes:
        value: the whole text or list.
        blocks: at least one; in order, not overlapping.
        end: where what is said about the documents goes.
    """

    @property
    def value(self) -> Value: ...
    @property
    def blocks(self) -> tuple[DocumentBlock, ...]: ...
    @property
    def end(self) -> int: ...

    def document(self, block: DocumentBlock) -> Document:
        """The document, equal to another one only if no reader could tell them apart once their
        numbers are gone."""

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        """Put the blocks `order` in place of all; `names` replace numbers, by block."""

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Put a reference in place of a block's text proper."""

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a sentence."""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Documents inside one text; see Group.

    Attributes:
        is_json: the texts proper stand in JSON strings.
    """

    value: str
    blocks: tuple[DocumentBlock, ...]
    end: int
    is_json: bool = False

    def document(self, block: DocumentBlock) -> Document:
        """The block's characters without its number."""
        if block.number is None:
            return Document(self.value[block.start : block.end])
        return Document(self._piece(block, ""))

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        """Move the blocks; separators keep their places."""
        blocks, text = self.blocks, self.value
        pieces: list[str] = []
        behind = blocks[0].start
        for i, place in zip(order, blocks, strict=False):  # without duplicates there are fewer
            pieces.append(text[behind : place.start])
            pieces.append(self._piece(blocks[i], names.get(i)))
            behind = place.end
        return Edit(blocks[0].start, blocks[-1].end, "".join(pieces))

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Replace the characters of the text proper."""
        new = json.dumps(reference)[1:-1] if self.is_json else reference
        return Edit(block.text_start, block.text_end, new)

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a paragraph."""
        return Edit(at, at, f"\n\n{hint}")

    def _piece(self, block: DocumentBlock, name: str | None) -> str:
        text, number = self.value, block.number
        if number is None or name is None:
            return text[block.start : block.end]
        return text[block.start : number.start] + name + text[number.end : block.end]


def splice(value: Value, edits: Sequence[Edit]) -> Value:
    """Apply edits that do not overlap."""
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    pieces: list[Any] = []
    at = 0
    for edit in ordered:
        pieces += (value[at : edit.start], edit.new)
        at = edit.end
    pieces.append(value[at:])
    if isinstance(value, str):
        return "".join(pieces)
    return [element for piece in pieces for element in piece]
