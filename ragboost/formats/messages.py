"""Documents that stand in messages: in their texts, as content blocks, in tool results.

The first group of a payload is ordered, if nothing but instructions stands in messages before it:
only then can another request have the same prefix. In all groups behind it, a document whose text
stands earlier in the payload is replaced by a reference; its marks and attributes stay. Nothing
moves out of its text or list, and nothing across a caller's cache mark.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.config import Settings
from ragboost.context import Context
from ragboost.formats.base import Found
from ragboost.formats.content_blocks import find_blocks, find_file_search_results, has_citations
from ragboost.formats.groups import DocumentBlock, Edit, Group, splice
from ragboost.formats.references import Standing
from ragboost.formats.slots import Path, Slot, at_path, find_slots, is_instruction, put
from ragboost.formats.text import find_groups
from ragboost.hints import label_documents, order_hint
from ragboost.types import Document


class _Place(NamedTuple):
    slot: Slot
    group: Group


class _Layout(NamedTuple):
    """What `extract` found.

    Attributes:
        leading: the group to order, or None.
        references: edits of the other groups, by path.
    """

    leading: _Place | None
    references: Mapping[Path, Sequence[Edit]]


class Messages:
    """See the module.

    Args:
        settings: of formats, hints, ordering and de-duplication.
    """

    name = "messages"
    in_message = True
    in_place = True
    is_ours = False

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._has_numbers = settings.formats.numbers == "label"

    def extract(self, body: Mapping[str, Any]) -> Found | None:
        """Find the groups of a body; None if there is nothing to order and nothing to refer to."""
        if not self._settings.formats.in_text:
            return None
        places = self._places(body)
        if not places:
            return None
        leading = places[0] if self._is_leading(places[0]) else None
        later = places[1:] if leading else places
        references, num_repeated = self._references(leading, later)
        layout = _Layout(leading, references)
        num_later = sum(len(place.group.blocks) for place in later)
        if leading is None:
            if not num_repeated:
                return None
            return Found(
                "", (), None, num_repeated=num_repeated, num_later=num_later, layout=layout
            )
        slot, group = leading
        return Found(
            query="",
            documents=tuple([group.document(block) for block in group.blocks]),
            message=slot.message,
            path=slot.path,
            start=group.blocks[0].start,
            num_repeated=num_repeated,
            num_later=num_later,
            layout=layout,
        )

    def replace(self, body: Mapping[str, Any], found: Found, context: Context) -> dict[str, Any]:
        """Write the new order, and the references."""
        layout = found.layout
        assert isinstance(layout, _Layout), f"another shape's layout: {layout!r}"
        edits: dict[Path, list[Edit]] = {path: list(e) for path, e in layout.references.items()}
        if layout.leading is not None:
            slot, group = layout.leading
            edits.setdefault(slot.path, []).extend(self._ordered(group, found, context))
        new = dict(body)
        # Deep places first: a list's own edits move what stands in it.
        for path in sorted(edits, key=len, reverse=True):
            if edits[path]:
                new = put(new, path, splice(at_path(new, path), edits[path]))
        return new

    def _places(self, body: Mapping[str, Any]) -> list[_Place]:
        """All groups in the order in which the model reads them."""
        slots = list(find_slots(body))
        # A citation counts all document blocks of a request: none of them may move then.
        has_positions = any(
            isinstance(slot.value, list) and has_citations(slot.value) for slot in slots
        )
        places = [
            _Place(slot, group)
            for slot in slots
            for group in self._groups(slot, has_positions=has_positions)
        ]
        # A list's groups were found before those inside its elements.
        return sorted(places, key=_reading_order) if len(places) > 1 else places

    def _groups(self, slot: Slot, *, has_positions: bool) -> Sequence[Group]:
        if isinstance(slot.value, str):
            registered = self._settings.formats.delimiters
            return find_groups(slot.value, registered=registered, is_tool=slot.is_tool)
        if slot.is_results:
            return find_file_search_results(slot.value)
        return [] if has_positions else find_blocks(slot.value)

    def _is_leading(self, place: _Place) -> bool:
        is_numbered = place.group.blocks[0].number is not None
        return (
            place.slot.is_leading
            and self._settings.ordering.enabled
            and (self._has_numbers or not is_numbered)
        )

    def _references(
        self, leading: _Place | None, later: Sequence[_Place]
    ) -> tuple[dict[Path, list[Edit]], int]:
        standing = Standing(self._settings.hints.location_template)
        for block in leading.group.blocks if leading and later else ():
            if block.text is not None:
                standing.add(block.text)
        edits: dict[Path, list[Edit]] = defaultdict(list)
        num = 0
        for slot, group in later if self._has_references else ():
            for block in group.blocks:
                if block.text is None:
                    continue
                reference = standing.reference(block.text)
                if reference is None:
                    standing.add(block.text)
                else:
                    edits[slot.path].append(group.referred(block, reference))
                    num += 1
        return dict(edits), num

    def _ordered(self, group: Group, found: Found, context: Context) -> list[Edit]:
        """The edits that put a group into the context's order and say so."""
        order = _order(found.documents, context.documents)
        is_numbered = group.blocks[0].number is not None
        if order == list(range(len(group.blocks))) and not is_numbered:
            return []
        names = self._names(order, found, context) if is_numbered else {}
        edits = [group.reordered(order, names)]
        hint = self._hint(group, order, names)
        if hint:
            after = self._settings.hints.position == "after_question"
            edits.append(group.hinted(hint, at=len(group.value) if after else group.end))
        return edits

    @staticmethod
    def _names(order: Sequence[int], found: Found, context: Context) -> dict[int, str]:
        """A name for each block, equal documents the same one: it depends on the document and on
        those before it, so that equal leading documents have equal bytes."""
        names = label_documents(context.documents, template="{label}", known={})
        by_key = {d.key: name for d, name in zip(context.documents, names, strict=True)}
        return {i: by_key[document.key] for i, document in enumerate(found.documents)}

    def _hint(self, group: Group, order: list[int], names: Mapping[int, str]) -> str:
        labels = _labels(group.blocks, order, names)
        lines = []
        if names:
            lines.append(_numbering(group, names))
        if self._settings.hints.order and sorted(order) != order:
            by_relevance = sorted(range(len(order)), key=order.__getitem__)
            relevant_first = [labels[place] for place in by_relevance]
            template = self._settings.hints.order_template
            lines.append(order_hint(relevant_first, template=template).text)
        return "\n".join(lines)


def _order(given: Sequence[Document], sent: Sequence[Document]) -> list[int]:
    """For each document that is sent, its place among those given; of equal ones the first."""
    places: dict[str, int] = {}
    for i, document in enumerate(given):
        places.setdefault(document.key, i)
    if len(sent) <= len(places):
        return [places[document.key] for document in sent]
    copies: dict[str, list[int]] = defaultdict(list)
    for i in range(len(given) - 1, -1, -1):
        copies[given[i].key].append(i)
    return [copies[document.key].pop() for document in sent]


def _reading_order(place: _Place) -> tuple[bool, tuple[str | int, ...]]:
    path = place.slot.path
    return not is_instruction(path), (*path[1:], place.group.blocks[0].start)


def _labels(
    blocks: Sequence[DocumentBlock], order: Sequence[int], names: Mapping[int, str]
) -> list[str]:
    """What hints call the documents, by place."""
    if names:
        return [_shown(blocks[i], names[i]) for i in order]
    labels = [blocks[i].name for i in order]
    if all(labels) and len(set(labels)) == len(labels):
        return labels
    return [f"document {place}" for place in range(1, len(order) + 1)]


def _numbering(group: Group, names: Mapping[int, str]) -> str:
    """Which number each document had, for the caller may look for it in the answer."""
    numbers = ", ".join(
        f"{_shown(block, names[i])} is {_shown(block, _digits(group, block))}"
        for i, block in enumerate(group.blocks)
    )
    return f"Cite documents by their numbers: {numbers}."


def _digits(group: Group, block: DocumentBlock) -> str:
    number = block.number
    return str(group.value[number.start : number.end]) if number else ""


def _shown(block: DocumentBlock, name: str) -> str:
    number = block.number
    return f"{number.prefix}{name}{number.suffix}" if number else block.name
