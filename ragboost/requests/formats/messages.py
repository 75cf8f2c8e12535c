"""Documents inside messages: in their texts, as content blocks, in tool results.

One list is ordered, if only instructions precede its message: only then can others have that
prefix. In later messages a document that occurred before becomes a reference. None leaves its text
or list.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ragboost.booster.context import Context
from ragboost.config import Settings
from ragboost.requests.formats.content_blocks import (
    find_blocks,
    find_file_search_results,
    has_citations,
)
from ragboost.requests.formats.documents import (
    DocumentPool,
    FoundDocuments,
    NothingToDoError,
    NumberedDocumentsError,
    OrderedDocumentsError,
    TooManyDocumentsError,
    UnknownShapeError,
    order_of,
)
from ragboost.requests.formats.frames import Scan, may_hold_list, scan
from ragboost.requests.formats.groups import EVIDENCE, Edit, Group, TextGroup, splice
from ragboost.requests.formats.instructions.around import (
    are_held,
    questions,
    texts_up_to_the_answer,
    why_it_stays,
)
from ragboost.requests.formats.instructions.questions import Question
from ragboost.requests.formats.notes import may_cite, note
from ragboost.requests.formats.numbering import (
    Numbering,
    TextBehind,
    is_answer_fixed,
    numbering_of,
    texts_behind,
)
from ragboost.requests.formats.references import EarlierTexts, stands_alone
from ragboost.requests.formats.unmarked import UnmarkedDocuments
from ragboost.requests.wires.body import Path, Slot, at_path, find_slots, is_instruction, put
from ragboost.util.bounded_map import Generations

_MAX_PLAIN = 16_384  # texts without documents that are remembered, and as many older ones
_END = 128  # characters at both ends of a text
_MAX_LINES = 250_000  # of all texts: the search takes a microsecond and more for each


class _Place(NamedTuple):
    slot: Slot
    group: Group


@dataclass(eq=False, slots=True)
class _Layout:
    leading: _Place | None  # the list to order
    references: Mapping[Path, Sequence[Edit]]  # edits of the other lists
    cites: bool = False  # the client's text lets the model cite the documents' numbers
    numbering: Numbering | None = None  # of the list to order
    behind: Sequence[TextBehind] = ()  # what may cite these numbers
    notes: dict[tuple[int, ...], str] = field(default_factory=dict)  # by order: asked for twice


class Messages:
    """Documents in the texts and content blocks of messages."""

    name = "messages"
    in_message = True
    in_place = True
    is_ours = False

    def __init__(
        self,
        settings: Settings,
        *,
        pool: DocumentPool,
        unmarked: UnmarkedDocuments,
        maps_answers: bool = True,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._unmarked = unmarked
        self._has_references = settings.dedup.enabled and settings.hints.location
        self._moves_numbered = settings.formats.numbers == "map"
        self._maps_answers = maps_answers
        # What texts without documents hold, by hash: those of a history that is resent are searched
        # once. Hashes of their ends stand in front, so that other texts are not hashed as a whole.
        self._plain: Generations[int, Scan] = Generations()
        self._asked: Generations[int, str] = Generations()

    def extract(
        self, body: Mapping[str, Any], *, tenant: str = "", learns: bool = True
    ) -> FoundDocuments | None:
        if not self._settings.formats.in_text:
            return None
        slots = find_slots(body)
        if not any(map(self._may_hold, slots)):
            return None
        scans = self._scanned(slots)
        places = _places(slots, scans, has_positions=_has_positions(slots))
        num = sum(len(place.group.blocks) for place in places)
        if num > self._settings.formats.max_documents:
            raise TooManyDocumentsError(num, self._settings.formats.max_documents)
        leading = self._choose(slots, places)
        if leading is None and (
            found := self._unmarked.cut(body, slots, scans, tenant=tenant, learns=learns)
        ):
            place = _Place(*found)
            leading = place if self._may_move(place) else None
            places = sorted([*places, place], key=_reading_order)
        stays = why_it_stays(slots, *leading, known=self._asked) if leading is not None else ""
        kept, leading = (leading, None) if stays else (None, leading)
        references, num_repeated = self._references(leading, places)
        num_later = sum(len(p.group.blocks) for p in places if p is not leading)
        if leading is None and not num_repeated:
            if kept is not None:
                raise OrderedDocumentsError(kept.group.frame, stays)
            self._name_what_is_left(slots, scans, places)
            if num_later:
                raise NothingToDoError(num_later)
            return None
        layout = self._layout(body, slots, scans, places, leading, references)
        if leading is None:
            frame = places[0].group.frame
            return FoundDocuments("", (), None, (), 0, num_repeated, num_later, frame, layout)
        slot, group = leading
        return FoundDocuments(
            query="",
            documents=self._pool.of_all(group.identities()),
            message=slot.message,
            path=slot.path,
            start=group.blocks[0].start,
            num_repeated=num_repeated,
            num_later=num_later,
            frame=group.frame,
            layout=layout,
            numbering=layout.numbering,
        )

    def replace(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> dict[str, Any]:
        layout = found.layout
        assert isinstance(layout, _Layout), f"another shape's layout: {layout!r}"
        edits: dict[Path, list[Edit]] = {path: list(e) for path, e in layout.references.items()}
        if layout.leading is not None:
            order = order_of(found.documents, context.documents)
            if order != list(range(len(layout.leading.group.blocks))):
                path = layout.leading.slot.path
                edits.setdefault(path, []).extend(self._ordered(layout, order, context))
                for path, renumbered in _renumbered(layout, order):
                    edits.setdefault(path, []).extend(renumbered)
        new, copies = dict(body), dict[int, Any]()
        # Deepest paths first: a list's own edits move its elements.
        for path in sorted(edits, key=len, reverse=True):
            if edits[path]:
                value = splice(at_path(new, path), edits[path])
                new = put(new, path, value, copies=copies)
        return new

    def note(self, body: Mapping[str, Any], found: FoundDocuments, context: Context) -> str:
        layout = found.layout
        assert isinstance(layout, _Layout), f"another shape's layout: {layout!r}"
        order = order_of(found.documents, context.documents)
        if order == list(range(len(found.documents))):
            return ""
        return self._note(layout, order, context)

    def _note(self, layout: _Layout, order: Sequence[int], context: Context) -> str:
        assert layout.leading is not None, "a request without leading documents"
        group = layout.leading.group
        has_order = self._settings.hints.order and context.is_order_hinted
        has_order = has_order and group.frame != EVIDENCE  # it would stand behind the question
        template = self._settings.hints.order_template if has_order else None
        if (key := (*order, has_order)) not in layout.notes:
            text = note(group, order, cites=layout.cites, template=template)
            layout.notes[key] = text
        return layout.notes[key]

    def _may_hold(self, slot: Slot) -> bool:
        value, frames = slot.value, self._settings.formats.frames
        return bool(frames) or type(value) is not str or may_hold_list(value, is_tool=slot.is_tool)

    def _scanned(self, slots: Sequence[Slot]) -> list[Scan]:
        texts = [slot.value for slot in slots if isinstance(slot.value, str)]
        if sum(map(len, texts)) > _MAX_LINES:
            _check_lines(texts)
        asked = questions(slots)
        return [
            self._scan(
                slot.value,
                is_tool=slot.is_tool,
                question=asked.get(slot.place, Question.NONE),
            )
            if isinstance(slot.value, str)
            else Scan()
            for slot in slots
        ]

    def _scan(self, text: str, *, is_tool: bool, question: Question) -> Scan:
        frames, plain, key = self._settings.formats.frames, self._plain, 0
        is_kept = "\n" in text  # the search of any other is as fast
        ends = hash((len(text), text[:_END], text[-_END:])) if is_kept else 0
        if is_kept and ends in plain:
            key = hash((text, is_tool, question))
            if (known := plain.get(key)) is not None:
                plain.newer[ends] = plain.newer[key] = known
                return known
        result = scan(text, frames=frames, is_tool=is_tool, question=question)
        if is_kept and not result.groups:
            key = key or hash((text, is_tool, question))
            plain.newer[ends] = plain.newer[key] = result
            if len(plain.newer) >= 2 * _MAX_PLAIN:
                plain.turn()
        return result

    def _choose(self, slots: Sequence[Slot], places: Sequence[_Place]) -> _Place | None:
        """Choose the list to order: of several in front, the one with most text."""
        free = [p for p in places if p.slot.is_leading and self._may_move(p)]
        return max(free, key=_size, default=None)

    def _may_move(self, place: _Place) -> bool:
        return not place.group.is_numbered or (self._moves_numbered and self._maps_answers)

    def _name_what_is_left(
        self, slots: Sequence[Slot], scans: Sequence[Scan], places: Sequence[_Place]
    ) -> None:
        held = [p for p in places if p.slot.is_leading and not self._may_move(p)]
        if held:
            raise NumberedDocumentsError(held[0].group.frame, len(held[0].group.blocks))
        self._unmarked.name_what_is_left(slots, scans)

    def _layout(
        self,
        body: Mapping[str, Any],
        slots: Sequence[Slot],
        scans: Sequence[Scan],
        places: Sequence[_Place],
        leading: _Place | None,
        references: Mapping[Path, Sequence[Edit]],
    ) -> _Layout:
        group = leading.group if leading is not None else None
        if leading is None or not isinstance(group, TextGroup) or not group.is_numbered:
            return _Layout(leading, references)
        cites = _cites(slots, leading)
        numbering = numbering_of(group)
        if numbering is None or not self._maps_answers:
            return _Layout(leading, references, cites)
        groups: dict[Path, list[Group]] = defaultdict(list)
        for place in places:
            groups[place.slot.path].append(place.group)
        is_cut = group.frame == EVIDENCE  # from a list whose last document has no certain end
        is_held = is_cut and are_held(*group.around())  # else lines with `1.` may be steps
        others = [
            slot
            for slot, result in zip(slots, scans, strict=True)
            if any(g.is_numbered and g is not group for g in groups.get(slot.path, ()))
            or (
                (result.problem or result.numbers)
                and not (
                    is_cut and slot is leading.slot and result.marks and (result.problem or is_held)
                )
            )
        ]
        behind = texts_behind(
            body, slots, groups, leading.slot, group, numbering=numbering, others=others
        )
        stays = behind.has_other or is_answer_fixed(body)
        numbering = replace(numbering, stays=stays or behind.is_named, others=behind.others)
        return _Layout(leading, references, cites, numbering, behind.texts)

    def _references(
        self, leading: _Place | None, places: Sequence[_Place]
    ) -> tuple[dict[Path, list[Edit]], int]:
        """Return the edits of documents that an earlier text contains, and their number."""
        edits: dict[Path, list[Edit]] = defaultdict(list)
        num = 0
        if len(places) < 2 or not self._has_references:
            return {}, 0
        earlier = EarlierTexts(self._settings.hints.location_template)
        for of_slot in _by_slot(places):
            for place in of_slot:
                if place is leading or not stands_alone(place.group, is_tool=place.slot.is_tool):
                    continue
                if new := earlier.edits(place.group):
                    edits[place.slot.path].extend(new)
                    num += len(new)
            for place in of_slot:
                earlier.add(place.group)
        return dict(edits), num

    def _ordered(self, layout: _Layout, order: Sequence[int], context: Context) -> list[Edit]:
        assert layout.leading is not None, "a request without leading documents"
        group = layout.leading.group
        edits = [group.reordered(order)]
        if hint := self._note(layout, order, context):
            edits.append(group.hinted(hint, at=group.end))
        return edits


def _texts_of(slots: Sequence[Slot], of: _Place) -> list[str]:
    """Return the texts up to the answer about a list, those around it in its own text too."""
    texts = texts_up_to_the_answer(slots, of.slot)
    return [*texts, *of.group.around()] if isinstance(of.group, TextGroup) else texts


def _check_lines(texts: Sequence[str]) -> None:
    num_lines = sum(text.count("\n") for text in texts)
    if num_lines > _MAX_LINES:
        raise UnknownShapeError(
            f"{num_lines:,} lines; documents are looked for in {_MAX_LINES:,} at most"
        )


def _has_positions(slots: Sequence[Slot]) -> bool:
    """Return True if citations by position count all document blocks of a request: none of them may
    move."""
    return any(isinstance(slot.value, list) and has_citations(slot.value) for slot in slots)


def _places(slots: Sequence[Slot], scans: Sequence[Scan], *, has_positions: bool) -> list[_Place]:
    places: list[_Place] = []
    for slot, result in zip(slots, scans, strict=True):
        groups: Iterable[Group] = result.groups
        if isinstance(slot.value, list):
            if slot.is_results:
                groups = find_file_search_results(slot.value)
            else:
                groups = [] if has_positions else find_blocks(slot.value)
        places += [_Place(slot, group) for group in groups]
    # A list's own groups were found before those inside its elements.
    return sorted(places, key=_reading_order) if len(places) > 1 else places


def _size(place: _Place) -> int:
    group = place.group
    if isinstance(group, TextGroup):
        return group.blocks[-1].end - group.blocks[0].start
    return sum(len(block.text or "") for block in group.blocks)


def _by_slot(places: Sequence[_Place]) -> Iterable[list[_Place]]:
    by_slot: dict[Path, list[_Place]] = {}
    for place in places:
        by_slot.setdefault(place.slot.path, []).append(place)
    return by_slot.values()


def _cites(slots: Sequence[Slot], leading: _Place | None) -> bool:
    """Return True if a text up to the documents' own message lets the model cite numbers."""
    if leading is None or not isinstance(leading.group, TextGroup) or not leading.group.is_numbered:
        return False
    return any(map(may_cite, _texts_of(slots, leading)))


def _renumbered(layout: _Layout, order: Sequence[int]) -> Iterable[tuple[Path, list[Edit]]]:
    """Yield the edits that write the places' numbers into what stands behind the list."""
    if layout.numbering is not None:
        citations = layout.numbering.places(order)
        for text in layout.behind:
            if edits := text.edits(citations):
                yield text.path, edits


def _reading_order(place: _Place) -> tuple[bool, tuple[str | int, ...]]:
    path = place.slot.path
    return not is_instruction(path), (*path[1:], place.group.blocks[0].start)
