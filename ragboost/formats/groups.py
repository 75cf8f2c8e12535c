"""A run of documents inside a text or a list of content blocks, and how it is rewritten.

A separator belongs to its position, not to a document, so that a document's bytes are the same at
every position. Does not know any particular shape.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragboost.wires.body import Value

_MAX_NAME = 200
_TEXTS = ("text", "page_content", "content", "snippet")  # of a search result


class Number(NamedTuple):
    """The positional number of a document, from its first digit up to the end of the last."""

    start: int
    end: int
    prefix: str  # written before it in hints, such as `[Doc_`
    suffix: str


class DocumentBlock(NamedTuple):
    """One document with its markup.

    start            text_start           text_end          end
    | <document id="3"> |  the text itself  | </document>    |

    Offsets in a text, or indices in a list, where `text_start` and `text_end` are unused.
    """

    start: int
    end: int
    text: str | None = None  # None if it cannot be told apart
    text_start: int = 0
    text_end: int = 0
    number: Number | None = None
    name: str = ""  # in hints


class Edit(NamedTuple):
    """A replacement for the part of a value between two offsets."""

    start: int
    end: int
    new: Any


@dataclass(frozen=True, slots=True)
class TextGroup:
    """Adjacent documents inside one text, which may change places with each other."""

    value: str
    blocks: tuple[DocumentBlock, ...]  # at least one; in order, not overlapping
    end: int  # where hints about the documents are inserted
    is_json: bool = False  # the documents' texts are JSON strings

    def identities(self) -> list[str]:
        """Return the text of each block's document; two are equal only if they read the same
        without their numbers."""
        text = self.value
        return [
            text[block.start : block.end] if block.number is None else self._piece(block, "")
            for block in self.blocks
        ]

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        """Write the blocks of `order` in place of all blocks; `names` replace numbers, by block.

        Separators keep their positions.
        """
        blocks, text = self.blocks, self.value
        pieces: list[str] = []
        behind = blocks[0].start
        for i, place in zip(order, blocks, strict=False):  # without duplicates there are fewer
            block = blocks[i]
            piece = self._piece(block, names[i]) if i in names else text[block.start : block.end]
            pieces += text[behind : place.start], piece
            behind = place.end
        return Edit(blocks[0].start, blocks[-1].end, "".join(pieces))

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        new = json.dumps(reference)[1:-1] if self.is_json else reference
        return Edit(block.text_start, block.text_end, new)

    def hinted(self, hint: str, *, at: int) -> Edit:
        return Edit(at, at, f"\n\n{hint}")

    def _piece(self, block: DocumentBlock, name: str) -> str:
        text, number = self.value, block.number
        if number is None:
            return text[block.start : block.end]
        return text[block.start : number.start] + name + text[number.end : block.end]


@dataclass(frozen=True, slots=True)
class ListGroup:
    """The same for documents that are elements of one list; they have no numbers."""

    value: list[Any]
    blocks: tuple[DocumentBlock, ...]
    end: int

    def identities(self) -> list[str]:
        return [json.dumps(self.value[block.start]) for block in self.blocks]

    def reordered(self, order: Sequence[int], names: Mapping[int, str]) -> Edit:
        moved = [self.value[self.blocks[i].start] for i in order]
        return Edit(self.blocks[0].start, self.blocks[-1].end, moved)

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Replace the element by a copy with another text."""
        return Edit(block.start, block.end, [_with_text(self.value[block.start], reference)])

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a text block."""
        return Edit(at, at, [{"type": "text", "text": hint}])


Group = TextGroup | ListGroup


def splice(value: Value, edits: Sequence[Edit]) -> Value:
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


def _with_text(value: dict[str, Any], text: str) -> dict[str, Any]:
    if value.get("type") == "document":
        return {**value, "source": {**value["source"], "data": text}}
    if value.get("type") == "search_result":
        return {**value, "content": [{**value["content"][0], "text": text}]}
    found = text_of(value)
    return {**value, found[0]: text} if found else value


def hint_name(value: Any) -> str:
    """Return a title as hints show it; empty if it is none, or too long."""
    is_plain = isinstance(value, str) and value.strip() and len(value) <= _MAX_NAME
    return f'"{value}"' if is_plain else ""


def text_of(result: Any) -> tuple[str, str] | None:
    """Return the name and value of a result's text field; None if it has none."""
    if isinstance(result, dict):
        for name in _TEXTS:
            if isinstance(value := result.get(name), str) and value.strip():
                return name, value
    return None
