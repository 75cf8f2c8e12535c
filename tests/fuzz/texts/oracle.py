"""Compare the texts that the backend received with the frames that the client wrote.

Knows where each document stood, because it was drawn so; finds nothing by itself. A text is right
if it is the client's own frame with whole documents in some order: marks in their places, names
with their documents, numbers renamed at most, nothing else moved. Shares no code with the proxy.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tests.fuzz.corpus import Doc
from tests.fuzz.texts.json_lists import is_same_data
from tests.fuzz.texts.layouts import Layout, Part

# The sentences that the documentation quotes: what the proxy may write into a text.
_REFERENCE = re.compile(
    r'Please refer to the document that begins with (\\?)"(.*?)\1" in the previous conversation\.'
)
_NOTES = (re.compile(r"Documents by relevance, most relevant first: [^\n]*"),)
_CITATION = re.compile(r"\[(\d+)\]")
_NUMBER = re.compile(r"[0-9A-Za-z]{1,16}")
_MAX_NOTES = 3
_MAX_SPACE = 6  # white space on each side of a note that may come with it
_LONGEST_LABEL = 120
_LONG = 40  # a text that does not stand in another by chance

KINDS = (
    *("cut", "doubled", "mixed", "note", "citation", "changed", "pasted", "lost"),
    *("not identical", "response", "crash"),
)
"""Faults: a document is not whole; it stands more often than given; documents are whole, but other
text or a name has moved; a note stands between documents; a number names another document; a text
without documents has changed; records of a pasted file have moved; one of them is lost; a resent
history has other bytes; the response is another; the proxy failed."""


@dataclass(frozen=True)
class Text:
    """One text of a message as the client wrote it: with a list of documents, or without.

    Attributes:
        head: what stands before the list, or the whole text.
        tail: what stands behind it.
        layout: of the list; None without one.
        documents: of the list; without a layout, those of a `ragboost` object, which the proxy
            renders into this text.
        is_answer: the model wrote it, and may cite documents.
        is_pasted: a file with records, in a message of the user.
    """

    head: str
    tail: str = ""
    layout: Layout | None = None
    documents: tuple[Doc, ...] = ()
    is_answer: bool = False
    is_pasted: bool = False

    @property
    def written(self) -> str:
        """The text."""
        return f"{self.head}{self.layout.write(self.documents) if self.layout else ''}{self.tail}"


class TextFault(NamedTuple):
    """A broken rule: one of `KINDS`, and what was seen."""

    kind: str
    detail: str


@dataclass
class Reader:
    """Check the texts of one payload, in its order.

    Attributes:
        has_documents: some text of the payload has a list, so that hints may be added.
        earlier: texts of the whole documents so far, which a reference may stand for.
        numbers: the client's numbers for those in the payload, by the list with numbers so far;
            empty if nothing has moved, or after another such list.
        num_numbered: lists with numbers so far.
    """

    has_documents: bool
    earlier: list[str] = field(default_factory=list)
    numbers: dict[str, set[str]] = field(default_factory=dict)
    num_numbered: int = 0

    def cites_alike(self, client: str, backend: str) -> bool:
        """Compare an answer as the client and as the backend has it."""
        mine, theirs = _CITATION.split(client), _CITATION.split(backend)
        if mine[::2] != theirs[::2]:
            return False
        pairs = zip(mine[1::2], theirs[1::2], strict=True)
        return all(number in self.numbers.get(place, {place}) for number, place in pairs)

    def check(self, text: Text, received: str) -> Iterator[TextFault]:
        """Yield the faults of one text."""
        if text.layout is None and text.documents:
            yield from _check_rendered(text, received)
            return
        if text.is_answer:
            if not self.cites_alike(text.written, received):
                yield TextFault("citation", f"{self.numbers}: {both(text.written, received)}")
            return
        if text.layout is None:
            may_note = self.has_documents and is_noted(text.written, received)
            if received != text.written and not may_note:
                yield TextFault(_kind(text, received), both(text.written, received))
            return
        reading = None
        self.num_numbered += text.layout.has_numbers
        if self.num_numbered > 1:
            self.numbers = {}
        if received != text.written:
            reading = _Reading(text, text.layout, received, tuple(self.earlier))
            if not reading.matches() and not self._is_same_data(text, received):
                yield _classified(text, text.layout, received)
            elif text.layout.has_numbers and (numbers := reading.numbers()) is None:
                yield TextFault("citation", both(text.written, received))
            elif text.layout.has_numbers:
                self.numbers = numbers or {}
        for place, document in enumerate(text.documents):
            if reading is None or place not in reading.replaced:
                self.earlier.append(document.text)

    def _is_same_data(self, text: Text, received: str) -> bool:
        """Compare a text that is JSON as data."""
        layout = text.layout
        if layout is None or not layout.is_json or text.head or text.tail:
            return False

        def is_reference(old: str, new: str) -> bool:
            found, core = _REFERENCE.fullmatch(new.strip()), old.strip()
            there = (*self.earlier, *(document.text for document in text.documents))
            is_there = sum(core == each.strip() for each in there) > 1
            return bool(found and is_there and _begins(core, found[2]))

        return is_same_data(text.written, received, is_reference=is_reference)


class _Reading:
    """Read a text as the client's frame with its documents in some order.

    Attributes:
        replaced: places (of the client) of the documents that a reference stands for.
        labels: what stands for the number at each place, with the document there.
    """

    def __init__(self, text: Text, layout: Layout, received: str, earlier: Sequence[str]) -> None:
        self._text, self._layout, self._received = text, layout, received
        self._earlier = earlier
        self._start = len(text.head) + len(layout.before)
        documents = text.documents
        self._units = [
            [layout.parts(document, place) for place in range(len(documents))]
            for document in documents
        ]
        self.replaced: set[int] = set()
        self.labels: list[tuple[str, int]] = []

    def matches(self) -> bool:
        """Find an order; the beginning up to the first document must be the client's."""
        if not self._received.startswith(f"{self._text.head}{self._layout.before}"):
            return False
        return self._place(0, self._start, ())

    def _place(self, place: int, at: int, used: tuple[tuple[int, bool, str], ...]) -> bool:
        """Match the documents from one place on; `used` has document, reference and label."""
        documents, taken = self._text.documents, {document for document, _, _ in used}
        if place and self._ends(at) and self._are_repeated(taken):
            self.replaced = {document for document, is_reference, _ in used if is_reference}
            self.labels = [(label, document) for document, _, label in used]
            return True
        between = self._layout.between if place else ""
        if not self._received.startswith(between, at):
            return False
        for document in sorted(range(len(documents)), key=lambda each: each != place):
            if document in taken:
                continue
            shown = [documents[each].text for each, is_reference, _ in used if not is_reference]
            parts = self._units[document][place]
            start = at + len(between)
            for end, is_reference, label in self._unit(parts, document, place, start, shown, ""):
                if self._place(place + 1, end, (*used, (document, is_reference, label))):
                    return True
        return False

    def _are_repeated(self, taken: set[int]) -> bool:
        """Say if all documents that are left out are repeated, with their names, by others."""
        there = [self._shown(place) for place in taken]
        missing = set(range(len(self._text.documents))) - taken
        return all(self._shown(place) in there for place in missing)

    def _shown(self, place: int) -> list[str]:
        """Return what the unit of a document says, apart from its number."""
        parts = self._units[place][place]
        return [part.text.strip() for part in parts if part.kind != "n"]

    def _unit(
        self,
        parts: Sequence[Part],
        document: int,
        place: int,
        at: int,
        shown: Sequence[str],
        label: str,
    ) -> Iterator[tuple[int, bool, str]]:
        """Yield the ends of one unit that begins here."""
        if not parts:
            yield at, False, label
            return
        part, rest = parts[0], parts[1:]
        if part.kind == "text":
            for end, is_reference in self._texts(document, place, at, shown):
                for last, _, name in self._unit(rest, document, place, end, shown, label):
                    yield last, is_reference, name
            return
        for taken in self._options(part, document, label, at):
            if self._received.startswith(taken, at):
                named = taken if part.kind == "n" else label
                end = at + len(taken)
                yield from self._unit(rest, document, place, end, shown, named)

    def _options(self, part: Part, document: int, label: str, at: int) -> Iterator[str]:
        """Yield what may stand for a mark; a closer has the number of its opener."""
        yield part.text
        if part.kind != "n":
            return
        own = str(self._layout.first + document)
        if label:
            yield label
        elif own != part.text:
            yield own
        if not label and (renamed := _NUMBER.match(self._received, at)):
            yield renamed[0]

    def _texts(
        self, document: int, place: int, at: int, shown: Sequence[str]
    ) -> Iterator[tuple[int, bool]]:
        """Yield the ends of a document's text, white space around it left where it was."""
        text, other = (self._text.documents[each].text for each in (document, place))
        encode, core = self._layout.encode, text.strip()
        for lead in dict.fromkeys((_lead(text), _lead(other))):
            for trail in dict.fromkeys((_trail(text), _trail(other), "")):
                written = encode(f"{lead}{core}{trail}")
                if self._received.startswith(written, at):
                    yield at + len(written), False
        if not core or not any(core == each.strip() for each in (*self._earlier, *shown)):
            return
        for lead in dict.fromkeys((encode(_lead(text)), encode(_lead(other)), "")):
            found = _REFERENCE.match(self._received, at + len(lead))
            if found and self._received.startswith(lead, at) and _begins(core, found[2]):
                for trail in dict.fromkeys((encode(_trail(text)), encode(_trail(other)), "")):
                    if self._received.startswith(trail, found.end()):
                        yield found.end() + len(trail), True

    def _ends(self, at: int) -> bool:
        tail = f"{self._layout.after}{self._text.tail}"
        rest = self._received[at:]
        # White space at the end of the last document may stand behind a note.
        return is_noted(tail, rest) or is_noted(tail.lstrip(), rest.lstrip())

    def numbers(self) -> dict[str, set[str]] | None:
        """Return the client's numbers that each number in the payload may stand for; None if they
        are neither the places' nor the client's. Equal documents have any of theirs."""
        first, shown = self._layout.first, self._shown
        if all(label == str(first + document) for label, document in self.labels):
            return {}  # numbers that move with their documents
        places = range(len(self._text.documents))
        found: dict[str, set[str]] = {}
        for place, (label, document) in enumerate(self.labels):
            if label and label != str(first + place):
                return None
            equal = {str(first + p) for p in places if shown(p) == shown(document)}
            found[str(first + place)] = equal
        return found


def _kind(text: Text, received: str) -> str:
    """Name what is wrong with a text that has no documents."""
    if not text.is_pasted:
        return "changed"
    records = Counter(text.written.split("\n"))
    return "lost" if records - Counter(received.split("\n")) else "pasted"


def is_noted(written: str, received: str) -> bool:
    """Say if a text is the client's, but for notes between its lines."""
    return _is_noted(written, received, _MAX_NOTES)


def _is_noted(written: str, received: str, most: int) -> bool:
    if written == received:
        return True
    if most == 0 or len(received) <= len(written):
        return False
    for pattern in _NOTES:
        for found in pattern.finditer(received):
            for start, end in _stretches(received, found.start(), found.end()):
                is_prefix = written.startswith(received[:start])
                if is_prefix and _is_noted(written[start:], received[end:], most - 1):
                    return True
    return False


def _stretches(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield a note with some or all of the white space around it."""
    first, last = start, end
    while first > 0 and text[first - 1] in " \r\n" and start - first < _MAX_SPACE:
        first -= 1
    while last < len(text) and text[last] in " \r\n" and last - end < _MAX_SPACE:
        last += 1
    for begin in range(start, first - 1, -1):
        for stop in range(last, end - 1, -1):
            yield begin, stop


def _lead(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _trail(text: str) -> str:
    return text[len(text.rstrip()) :] if text.strip() else ""


def _begins(text: str, quoted: str) -> bool:
    with suppress(ValueError):  # a quotation inside a JSON string
        quoted = json.loads(f'"{quoted}"')
    squeezed = "".join(quoted.replace("\\n", " ").replace("\\", "").split())
    return "".join(text.replace("\\n", " ").replace("\\", "").split()).startswith(squeezed)


def _check_rendered(text: Text, received: str) -> Iterator[TextFault]:
    """Find each document whole in the text, and nothing else of any length."""
    rest = received
    for core in sorted((d.text.strip() for d in text.documents), key=len, reverse=True):
        if core not in received:
            yield TextFault("cut", f"{core[:80]!r}: {both(text.head, received)}")
        rest = rest.replace(core, "", 1)
    if text.head not in rest:
        yield TextFault("changed", both(text.head, received))
    for line in rest.replace(text.head, "", 1).splitlines():
        is_ours = any(p.search(line) for p in (*_NOTES, _REFERENCE))
        if len(line) > _LONGEST_LABEL and not is_ours:
            yield TextFault("mixed", f"{line!r}: {both(text.head, received)}")


def _classified(text: Text, layout: Layout, received: str) -> TextFault:
    """Say what is wrong with a text that is not the client's frame."""
    detail = both(text.written, received)
    if _has_note_inside(text, layout, received):
        return TextFault("note", detail)
    for document in text.documents:
        whole = layout.encode(document.text.strip())
        if received.count(whole) < text.written.count(whole):
            return TextFault("cut", f"document {document.number}: {detail}")
    for document in text.documents:
        whole = layout.encode(document.text.strip())
        if len(whole) > _LONG and received.count(whole) > text.written.count(whole):
            return TextFault("doubled", f"document {document.number}: {detail}")
    return TextFault("mixed", detail)


def _has_note_inside(text: Text, layout: Layout, received: str) -> bool:
    """Say if all is right, white space aside, once the notes between documents are taken out."""
    rest = received
    for pattern in _NOTES:
        for found in pattern.finditer(received):
            if rest.count(found[0]) > text.written.count(found[0]):
                rest = rest.replace(found[0], "", 1)
    if rest == received:
        return False
    documents = tuple(
        replace(each, text=_bare(each.text), id=_bare(str(each.id)), title=_bare(each.title or ""))
        for each in text.documents
    )
    bare = replace(text, head=_bare(text.head), tail=_bare(text.tail), documents=documents)
    frame = replace(
        layout,
        unit=_bare(layout.unit),
        between=_bare(layout.between),
        before=_bare(layout.before),
        after=_bare(layout.after),
    )
    return _Reading(bare, frame, _bare(rest), ()).matches()


def _bare(text: str) -> str:
    return "".join(text.split())


def both(before: str, now: str) -> str:
    """Return the first difference of two texts, and both."""
    return f"{difference(before, now)}\n--- client\n{before}\n--- backend\n{now}\n---"


def difference(before: str, now: str) -> str:
    """Describe the first difference of two texts."""
    at = next(
        (i for i, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
        min(len(before), len(now)),
    )
    start = max(0, at - 30)
    return f"at {at}: {before[start : at + 120]!r} became {now[start : at + 120]!r}"
