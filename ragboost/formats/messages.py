"""Documents inside messages: in their texts, as content blocks, in tool results.

The first group is ordered if only instructions precede it: only then can others have that prefix.
In later ones a text that occurred before becomes a reference. None leaves its text or list.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.bounded_map import Generations
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.formats.content_blocks import find_blocks, find_file_search_results, has_citations
from ragboost.formats.documents import (
    DocumentPool,
    FoundDocuments,
    TooManyDocumentsError,
    UnknownShapeError,
)
from ragboost.formats.groups import DocumentBlock, Edit, Group, TextGroup, splice
from ragboost.formats.references import EarlierTexts
from ragboost.formats.text import find_groups
from ragboost.hints import label_documents, order_hint
from ragboost.types import KEY_OF, Document
from ragboost.wires.body import Path, Slot, at_path, find_slots, is_instruction, put

_MAX_PLAIN = 16_384  # texts without documents that are remembered, and as many older ones
_MAX_LINES = 250_000  # of all texts: the search takes a microsecond and more for each


class _Place(NamedTuple):
    slot: Slot
    group: Group


class _Layout(NamedTuple):
    leading: _Place | None  # the group to order
    references: Mapping[Path, Sequence[Edit]]  # edits of the other groups


class Messages:
    """Documents in the texts and content blocks of messages."""

    name = "messages"
    in_message = True
    in_place = True
    is_ours = False

    def __init__(self, settings: Settings, *, pool: DocumentPool) -> None:
        self._settings = settings
        self._pool = pool
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._has_numbers = settings.formats.numbers == "label"
        # Hashes of texts without documents: those of a history that is resent are searched once.
        self._plain: Generations[int, None] = Generations()

    def extract(self, body: Mapping[str, Any]) -> FoundDocuments | None:
        if not self._settings.formats.in_text:
            return None
        places = self._places(body)
        if not places:
            return None
        num = sum(len(place.group.blocks) for place in places)
        if num > self._settings.formats.max_documents:
            raise TooManyDocumentsError(num, self._settings.formats.max_documents)
        leading = places[0] if self._is_leading(places[0]) else None
        later = places[1:] if leading else places
        references, num_repeated = self._references(leading, later)
        layout = _Layout(leading, references)
        num_later = sum(len(place.group.blocks) for place in later)
        if leading is not None:
            return self._leading(*leading, layout, num_repeated=num_repeated, num_later=num_later)
        if not num_repeated:
            return None
        return FoundDocuments("", (), None, (), 0, num_repeated, num_later, layout)

    def _leading(
        self, slot: Slot, group: Group, layout: _Layout | None = None, **counts: int
    ) -> FoundDocuments:
        return FoundDocuments(
            query="",
            documents=self._pool.of_all(group.identities()),
            message=slot.message,
            path=slot.path,
            start=group.blocks[0].start,
            **counts,
            layout=layout or _Layout(_Place(slot, group), {}),
        )

    def replace(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> dict[str, Any]:
        layout = found.layout
        assert isinstance(layout, _Layout), f"another shape's layout: {layout!r}"
        edits: dict[Path, list[Edit]] = {path: list(e) for path, e in layout.references.items()}
        if layout.leading is not None:
            slot, group = layout.leading
            edits.setdefault(slot.path, []).extend(self._ordered(group, found, context))
        new, copies = dict(body), dict[int, Any]()
        # Deepest paths first: a list's own edits move its elements.
        for path in sorted(edits, key=len, reverse=True):
            if edits[path]:
                value = splice(at_path(new, path), edits[path])
                new = put(new, path, value, copies=copies)
        return new

    def moved_behind(
        self, body: Mapping[str, Any], found: FoundDocuments, start: int, stop: int
    ) -> dict[str, Any]:
        """Return a body in which a part of the text before the documents, given by its offsets,
        follows these as a paragraph."""
        layout = found.layout
        assert isinstance(layout, _Layout), f"another shape's layout: {layout!r}"
        assert layout.leading is not None, "a request without leading documents"
        slot, group = layout.leading
        piece = group.value[start:stop]
        edits = [Edit(start, stop, ""), group.hinted(str(piece).strip("\n"), at=group.end)]
        return put(body, slot.path, splice(at_path(body, slot.path), edits))

    def _places(self, body: Mapping[str, Any]) -> list[_Place]:
        slots = find_slots(body)
        texts = [slot.value for slot in slots if isinstance(slot.value, str)]
        if sum(map(len, texts)) > _MAX_LINES:
            _check_lines(texts)
        # Citations by position count all document blocks of a request: none of them may move.
        has_positions = len(texts) < len(slots) and any(
            isinstance(slot.value, list) and has_citations(slot.value) for slot in slots
        )
        places = [
            _Place(slot, group)
            for slot in slots
            for group in self._groups(slot, has_positions=has_positions)
        ]
        # A list's own groups were found before those inside its elements.
        return sorted(places, key=_reading_order) if len(places) > 1 else places

    def _groups(self, slot: Slot, *, has_positions: bool) -> Sequence[Group]:
        if isinstance(slot.value, str):
            return self._text_groups(slot.value, is_tool=slot.is_tool)
        if slot.is_results:
            return find_file_search_results(slot.value)
        return [] if has_positions else find_blocks(slot.value)

    def _text_groups(self, text: str, *, is_tool: bool) -> Sequence[TextGroup]:
        registered, key = self._settings.formats.delimiters, 0
        if "\n" in text:  # the search of any other is as fast
            key = hash((text, is_tool))
            if key in self._plain.newer:
                return []
        is_known = key in self._plain.older
        groups = [] if is_known else find_groups(text, registered=registered, is_tool=is_tool)
        if key and not groups:
            self._plain.newer[key] = None
            if len(self._plain.newer) >= _MAX_PLAIN:
                self._plain.turn()
        return groups

    def _is_leading(self, place: _Place) -> bool:
        is_numbered = place.group.blocks[0].number is not None
        return place.slot.is_leading and (self._has_numbers or not is_numbered)

    def _references(
        self, leading: _Place | None, later: Sequence[_Place]
    ) -> tuple[dict[Path, list[Edit]], int]:
        earlier = EarlierTexts(self._settings.hints.location_template)
        if leading is not None and later:
            earlier.edits(leading.group, may_refer=False)
        edits: dict[Path, list[Edit]] = defaultdict(list)
        num = 0
        for slot, group in later if self._has_references else ():
            if new := earlier.edits(group):
                edits[slot.path].extend(new)
                num += len(new)
        return dict(edits), num

    def _ordered(self, group: Group, found: FoundDocuments, context: Context) -> list[Edit]:
        order = _order(found.documents, context.documents)
        is_numbered = group.blocks[0].number is not None
        if order == list(range(len(group.blocks))) and not is_numbered:
            return []
        names = self._names(order, found, context) if is_numbered else {}
        edits = [group.reordered(order, names)]
        hint = self._hint(group, order, names, has_order=context.is_order_hinted)
        if hint:
            after = self._settings.hints.position == "after_question"
            edits.append(group.hinted(hint, at=len(group.value) if after else group.end))
        return edits

    @staticmethod
    def _names(order: Sequence[int], found: FoundDocuments, context: Context) -> dict[int, str]:
        """Return a name for each block. Equal documents share one; it depends on the document and
        those before it alone, so that equal leading documents have equal bytes."""
        names = label_documents(context.documents, template="{label}", known={})
        by_key = {d.key: name for d, name in zip(context.documents, names, strict=True)}
        return {i: by_key[document.key] for i, document in enumerate(found.documents)}

    def _hint(
        self, group: Group, order: list[int], names: Mapping[int, str], *, has_order: bool
    ) -> str:
        labels = _labels(group.blocks, order, names)
        lines = []
        if names:
            lines.append(_numbering(group, names))
        if self._settings.hints.order and has_order:
            by_relevance = sorted(range(len(order)), key=order.__getitem__)
            template = self._settings.hints.order_template
            hint = order_hint(labels, by_relevance, template=template)
            lines += [hint.text] if hint is not None else []
        return "\n".join(lines)


def _check_lines(texts: Sequence[str]) -> None:
    num_lines = sum(text.count("\n") for text in texts)
    if num_lines > _MAX_LINES:
        raise UnknownShapeError(
            f"{num_lines:,} lines; documents are looked for in {_MAX_LINES:,} at most"
        )


def _order(documents: Sequence[Document], sent: Sequence[Document]) -> list[int]:
    """Return the position among `documents` of each one sent; of equal ones the first."""
    keys = list(map(KEY_OF, documents))
    places = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    if len(sent) <= len(places):
        return list(map(places.__getitem__, map(KEY_OF, sent)))
    copies: dict[str, list[int]] = defaultdict(list)
    for i in range(len(documents) - 1, -1, -1):
        copies[documents[i].key].append(i)
    return [copies[document.key].pop() for document in sent]


def _reading_order(place: _Place) -> tuple[bool, tuple[str | int, ...]]:
    path = place.slot.path
    return not is_instruction(path), (*path[1:], place.group.blocks[0].start)


def _labels(
    blocks: Sequence[DocumentBlock], order: Sequence[int], names: Mapping[int, str]
) -> list[str]:
    if names:
        return [_shown(blocks[i], names[i]) for i in order]
    labels = [blocks[i].name for i in order]
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    return [f"document {place}" for place in range(1, len(order) + 1)]


def _numbering(group: Group, names: Mapping[int, str]) -> str:
    """List the original number of each document, which the caller may look for in the response.

    Copies of a document share a name, and get the number of the most relevant one.
    """
    pairs: dict[str, str] = {}
    for i, block in enumerate(group.blocks):
        pairs.setdefault(_shown(block, names[i]), _shown(block, _digits(group, block)))
    numbers = ", ".join(f"{name} is {number}" for name, number in pairs.items())
    return f"Cite documents by their numbers: {numbers}."


def _digits(group: Group, block: DocumentBlock) -> str:
    number = block.number
    return str(group.value[number.start : number.end]) if number else ""


def _shown(block: DocumentBlock, name: str) -> str:
    number = block.number
    return f"{number.prefix}{name}{number.suffix}" if number else block.name
