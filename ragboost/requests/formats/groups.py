"""A run of documents inside a text or a list of content blocks, and how it is rewritten.

A separator belongs to its position, not to a document, so that a document's bytes are the same at
every position. Does not know any particular shape.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ragboost.requests.wires.body import Value
from ragboost.requests.wires.cache_marks import marks_of, without_marks

_MAX_NAME = 200
EVIDENCE = "evidence"  # the frame of documents whose ends traffic has shown, not the text
_TEXTS = ("text", "page_content", "pageContent", "content", "snippet")  # of a search result


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
    # The digits of its positional number, from the first up to the end of the last, wherever they
    # stand: `[CONTEXT 3]` ... `[END CONTEXT 3]`.
    numbers: tuple[tuple[int, int], ...] = ()
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
    frame: str = ""  # how they stand in the text

    @property
    def is_numbered(self) -> bool:
        return all(block.numbers for block in self.blocks)

    def number(self, place: int) -> str:
        """Return the number that the client gave to the document at a place."""
        return self.value[slice(*self.blocks[place].numbers[0])]

    def identities(self) -> list[str]:
        """Return the text of each block's document; two are equal only if they read the same
        without their numbers. A text that occurs twice in one list is two documents."""
        return _told_apart([self._piece(block, "") for block in self.blocks])

    def reordered(self, order: Sequence[int]) -> Edit:
        """Write the blocks of `order` in place of all blocks.

        Separators and numbers belong to the places.
        """
        blocks, text = self.blocks, self.value
        pieces: list[str] = []
        behind = blocks[0].start
        for at, (i, place) in enumerate(zip(order, blocks, strict=False)):
            number = self.number(at) if place.numbers else ""
            pieces += text[behind : place.start], self._piece(blocks[i], number)
            behind = place.end
        return Edit(blocks[0].start, blocks[-1].end, "".join(pieces))

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        new = reference
        if self.is_json:  # in the spelling of the document
            is_ascii = self.value[block.text_start : block.text_end].isascii()
            new = json.dumps(reference, ensure_ascii=is_ascii)[1:-1]
        return Edit(block.text_start, block.text_end, new)

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a hint as a paragraph, even where the client's text goes on in the line."""
        is_line_end = self.value[at : at + 1] in ("", "\n", "\r")
        return Edit(at, at, f"\n\n{hint}" if is_line_end else f"\n\n{hint}\n\n")

    def around(self) -> tuple[str, str]:
        """Return the text before the first document and behind the last one."""
        return self.value[: self.blocks[0].start], self.value[self.blocks[-1].end :]

    def _piece(self, block: DocumentBlock, number: str) -> str:
        text, at = self.value, block.start
        if not block.numbers:
            return text[at : block.end]
        pieces: list[str] = []
        for start, end in block.numbers:
            pieces += text[at:start], number
            at = end
        return "".join((*pieces, text[at : block.end]))


@dataclass(frozen=True, slots=True)
class ListGroup:
    """The same for documents that are elements of one list; they have no numbers."""

    value: list[Any]
    blocks: tuple[DocumentBlock, ...]
    end: int
    frame: str = "content blocks"

    def identities(self) -> list[str]:
        elements = [self.value[block.start] for block in self.blocks]
        return _told_apart([json.dumps(without_marks(element)) for element in elements])

    is_numbered = False

    def reordered(self, order: Sequence[int]) -> Edit:
        moved = [self.value[self.blocks[i].start] for i in order]
        if marks := marks_of(last := self.value[self.blocks[-1].start]):
            moved = [without_marks(element) if element is last else element for element in moved]
            moved[-1] = {**moved[-1], **marks}
        return Edit(self.blocks[0].start, self.blocks[-1].end, moved)

    def referred(self, block: DocumentBlock, reference: str) -> Edit:
        """Replace the element by a copy with another text."""
        return Edit(block.start, block.end, [_with_text(self.value[block.start], reference)])

    def hinted(self, hint: str, *, at: int) -> Edit:
        """Insert a text block."""
        return Edit(at, at, [{"type": "text", "text": hint}])


Group = TextGroup | ListGroup


def _told_apart(texts: list[str]) -> list[str]:
    """Return other texts in place of repeated ones, by their order."""
    if len(set(texts)) == len(texts):
        return texts
    num: dict[str, int] = {}
    for at, text in enumerate(texts):
        num[text] = place = num.get(text, 0) + 1
        if place > 1:
            texts[at] = f"{text}\0{place}"
    return texts


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
