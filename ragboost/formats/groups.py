"""A run of documents inside a text or a list of content blocks, and how it is rewritten.

A separator belongs to its position, not to a document, so that a document's bytes are the same at
every position. Does not know any particular shape.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ragboost.wires.body import Value


class Number(NamedTuple):
    """The positional number of a document.

    Attributes:
        start: offset of the first digit in the text.
        end: offset after the last digit.
        prefix: written before it in hints, such as `[Doc_`.
        suffix: written after it in hints.
    """

    start: int
    end: int
    prefix: str
    suffix: str


class DocumentBlock(NamedTuple):
    """One document with its markup.

    Attributes:
        start: offset in the text, or index in the list.
        end: after the last character or element.
        text: the text itself, without markup and attributes; None if it cannot be told apart.
        text_start: offset of the text itself; unused in lists.
        text_end: after the text itself; unused in lists.
        number: its positional number, or None.
        name: its name in hints; empty if it has none.
    """

    start: int
    end: int
    text: str | None = None
    text_start: int = 0
    text_end: int = 0
    number: Number | None = None
    name: str = ""


class Edit(NamedTuple):
    """A replacement for the part of a value between two offsets."""

    start: int
    end: int
    new: Any


class Group(Protocol):
    """Adjacent documents that may change places with each other.

    Attributes:
        value: the whole text or list.
        blocks: at least one; in order, not overlapping.
        end: where hints about the documents are inserted.
    """

    @property
    def value(self) -> Value: ...
    @property
    def blocks(self) -> tuple[DocumentBlock, ...]: ...
    @property
    def end(self) -> int: ...

    def identity(self, block: DocumentBlock) -> str:
        """Return the text of a block's document; two are equal only if they read the same without
        their numbers."""

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        """Write the blocks of `order` in place of all blocks; `names` replace numbers, by block."""

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Write a reference in place of a block's text."""

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a sentence."""


@dataclass(frozen=True, slots=True)
class TextGroup:
    """A group of documents inside one text.

    Attributes:
        is_json: the texts are JSON strings.
    """

    value: str
    blocks: tuple[DocumentBlock, ...]
    end: int
    is_json: bool = False

    def identity(self, block: DocumentBlock) -> str:
        """Return the block's characters without its number."""
        if block.number is None:
            return self.value[block.start : block.end]
        return self._piece(block, "")

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        """Move the blocks; separators keep their positions."""
        blocks, text = self.blocks, self.value
        pieces: list[str] = []
        behind = blocks[0].start
        for i, place in zip(order, blocks, strict=False):  # without duplicates there are fewer
            pieces.append(text[behind : place.start])
            pieces.append(self._piece(blocks[i], names.get(i)))
            behind = place.end
        return Edit(blocks[0].start, blocks[-1].end, "".join(pieces))

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Replace the characters of the text itself."""
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
