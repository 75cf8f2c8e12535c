"""Learn where documents end in texts that join them by blank lines, as `"\\n\\n".join` does.

Paragraphs that return whole, in other orders and between other neighbours, are a document. Knows
hashes of paragraphs, no texts. Does not know bodies or messages.
"""

import sys
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

from ragboost.bounded_map import BoundedMap
from ragboost.formats.text.frames import find_frames
from ragboost.formats.text.spans import finds, strip

NUM_ORDERS = 3
"""Occurrences, pairwise between other neighbours, after which a run of paragraphs is a document.

Two would not do: where chunks overlap, a shared paragraph ends one chunk and begins the next.
"""

_SEPARATOR = "\n\n"
_MAX_CHARS = 256 * 1024
_MAX_PARAGRAPHS = 256
_MAX_DOCUMENT = 16  # paragraphs
_MIN_DOCUMENT_CHARS = 40
_MAX_HEAD_CHARS = 200
_MAX_HEAD_LINES = 8
# Per process: at most about 40 MB of hashes.
_MAX_HEADS = 64
_MAX_TEXTS = 4096
_MAX_REQUESTS = 16
_MAX_RUNS = 1024
_MAX_NEIGHBOURS = 4096

Run = tuple[int, ...]  # hashes of adjacent paragraphs


class Span(NamedTuple):
    start: int
    end: int


class _Paragraph(NamedTuple):
    start: int
    end: int
    key: int


class _Neighbours:
    """The paragraphs beside one paragraph, over all requests."""

    __slots__ = ("after", "before", "is_after_varied", "is_before_varied", "is_repeated")

    def __init__(self, before: int, after: int) -> None:
        self.before, self.after = before, after  # at its first occurrence
        self.is_before_varied = self.is_after_varied = False
        self.is_repeated = False  # occurred twice in one request: nothing is learnt from it

    def add(self, before: int, after: int) -> None:
        self.is_before_varied |= before != self.before
        self.is_after_varied |= after != self.after


class BoundaryLearner:
    """The boundaries learnt so far, per tenant and head: the first line of a text. Thread-safe.

    The cut of a text is remembered, so that a conversation that resends it later is cut as its
    first turn was.
    """

    def __init__(self) -> None:
        self._heads: BoundedMap[tuple[str, str], _Head] = BoundedMap(max_entries=_MAX_HEADS)
        self._cuts: BoundedMap[tuple[str, int, int], tuple[Span, ...]] = BoundedMap(
            max_entries=_MAX_TEXTS
        )
        self._lock = Lock()

    def cut(self, text: str, *, tenant: str, is_first_turn: bool) -> tuple[Span, ...]:
        """Return the documents of a text, which may change places; empty if they are not known.

        Learns from the text, too. A text of a later turn that was not cut before is left alone: the
        engine has it as it was.
        """
        if len(text) > _MAX_CHARS or _SEPARATOR not in text:
            return ()
        name = (tenant, len(text), hash(text))
        with self._lock:
            spans = self._cuts.get(name)
            if spans is None:
                spans = self._learn(text, tenant) if is_first_turn else ()
                self._cuts.put(name, spans)
            return spans

    def _learn(self, text: str, tenant: str) -> tuple[Span, ...]:
        key = (tenant, text.partition("\n")[0][:_MAX_HEAD_CHARS])
        head = self._heads.get(key)
        if head is None:
            head = _Head()
            self._heads.put(key, head)
        frame = next(find_frames(text), None)
        start, end = (frame.start, frame.end) if frame else (0, len(text))
        paragraphs = _paragraphs(text, start, end)
        if frame is None and paragraphs:
            paragraphs = head.without_intro(text, paragraphs)
        if len(paragraphs) < 2:
            return ()
        head.observe(tuple([paragraph.key for paragraph in paragraphs]))
        spans = head.documents(paragraphs, has_frame=frame is not None)
        texts = {text[span.start : span.end] for span in spans}
        return spans if len(texts) == len(spans) else ()  # none may be dropped as a duplicate


class _Head:
    """Paragraphs of the requests with one head, and what stood beside them."""

    def __init__(self) -> None:
        self._recent: deque[Run] = deque()
        self._num_recent: Counter[int] = Counter()  # of these requests have the paragraph
        self._neighbours: BoundedMap[int, _Neighbours] = BoundedMap(max_entries=_MAX_NEIGHBOURS)
        # Neighbours of the occurrences of a run, pairwise different on both sides.
        self._runs: BoundedMap[Run, list[tuple[int, int]]] = BoundedMap(max_entries=_MAX_RUNS)

    def without_intro(self, text: str, paragraphs: list[_Paragraph]) -> list[_Paragraph]:
        """Cut an introduction such as "Context:", that no blank line ends, off the first document.

        A known paragraph at the end of the first one says where.
        """
        first = paragraphs[0]
        end = min(first.end, first.start + _MAX_HEAD_CHARS * _MAX_HEAD_LINES)
        for _, at in zip(range(_MAX_HEAD_LINES), finds(text, "\n", first.start, end), strict=False):
            start = strip(text, at, first.end)[0]
            key = hash(text[start : first.end])
            if key in self._neighbours:
                intro = strip(text, first.start, start)
                before = _Paragraph(*intro, hash(text[slice(*intro)]))
                return [before, _Paragraph(start, first.end, key), *paragraphs[1:]]
        return paragraphs

    def observe(self, keys: Run) -> None:
        """Learn from the paragraphs of one request."""
        if keys in self._recent:
            return
        self._add_neighbours(keys)
        places = {key: at for at, key in enumerate(keys) if self._is_unique(key)}
        for other in self._recent:
            for other_at, at, length in _moved_runs(other, places):
                run = keys[at : at + length]
                self._add_occurrence(run, *_beside(keys, at, length))
                self._add_occurrence(run, *_beside(other, other_at, length))
        if len(self._recent) == _MAX_REQUESTS:
            self._num_recent.subtract(set(self._recent.popleft()))
            self._num_recent = +self._num_recent
        self._recent.append(keys)
        self._num_recent.update(set(keys))

    def documents(self, paragraphs: Sequence[_Paragraph], *, has_frame: bool) -> tuple[Span, ...]:
        """Return the documents of one section: what is in all requests belongs to the template, and
        nothing moves across it. Between two documents, what is not known yet is one more.

        None while documents share paragraphs, as overlapping chunks do.
        """
        if any(len(set(keys)) < len(keys) for keys in self._recent):
            return ()
        best: tuple[Span, ...] = ()
        most = 1
        for section in self._sections(paragraphs):
            spans, num_learnt = self._cut_section(section, has_frame=has_frame)
            if num_learnt > most:
                best, most = spans, num_learnt
        return best

    def _sections(self, paragraphs: Sequence[_Paragraph]) -> Iterator[list[_Paragraph]]:
        section: list[_Paragraph] = []
        for paragraph in paragraphs:
            if self._num_recent[paragraph.key] == len(self._recent):
                yield section
                section = []
            else:
                section.append(paragraph)
        yield section

    def _cut_section(
        self, section: Sequence[_Paragraph], *, has_frame: bool
    ) -> tuple[tuple[Span, ...], int]:
        keys = tuple([paragraph.key for paragraph in section])
        spans: list[Span] = []
        learnt: list[int] = []  # places among the spans
        at = unknown = 0
        while at < len(keys):
            lengths = self._match(section, keys, at)
            if lengths and unknown < at:
                spans.append(Span(section[unknown].start, section[at - 1].end))
            for length in lengths:
                learnt.append(len(spans))
                spans.append(Span(section[at].start, section[at + length - 1].end))
                at += length
            if lengths:
                unknown = at
            else:
                at += 1
        if unknown < at:
            spans.append(Span(section[unknown].start, section[-1].end))
        if not has_frame and learnt:  # at the ends it may be an instruction or the question
            spans = spans[learnt[0] : learnt[-1] + 1]
        return tuple(spans), len(learnt)

    def _match(self, section: Sequence[_Paragraph], keys: Run, at: int) -> list[int]:
        """Return the lengths of the documents that begin here: of the longest that is known, cut
        as finely as others that are known allow."""
        for length in range(min(_MAX_DOCUMENT, len(keys) - at), 0, -1):
            last = section[at + length - 1]
            is_long = last.end - section[at].start >= _MIN_DOCUMENT_CHARS
            if is_long and self._is_learnt(keys[at : at + length]):
                return self._tiles(keys[at : at + length])
        return []

    def _tiles(self, run: Run) -> list[int]:
        tilings: dict[int, list[int]] = {0: []}
        for at in range(len(run)):
            for end in range(at + 1, len(run) + 1) if at in tilings else ():
                tiling = [*tilings[at], end - at]
                if self._is_learnt(run[at:end]) and len(tiling) > len(tilings.get(end, ())):
                    tilings[end] = tiling
        return tilings[len(run)]

    def _is_learnt(self, run: Run) -> bool:
        occurrences = self._runs.peek(run)
        return occurrences is not None and len(occurrences) >= NUM_ORDERS

    def _add_neighbours(self, keys: Run) -> None:
        counts = Counter(keys)
        for at, key in enumerate(keys):
            before, after = _beside(keys, at, 1)
            neighbours = self._neighbours.get(key)
            if neighbours is None:
                neighbours = _Neighbours(before, after)
                self._neighbours.put(key, neighbours)
            neighbours.add(before, after)
            neighbours.is_repeated |= counts[key] > 1

    def _is_unique(self, key: int) -> bool:
        neighbours = self._neighbours.peek(key)
        return neighbours is not None and not neighbours.is_repeated

    def _add_occurrence(self, run: Run, before: int, after: int) -> None:
        """Count an occurrence between neighbours that are themselves not bound to the run."""
        if self._is_learnt(run):
            return
        left, right = self._neighbours.peek(before), self._neighbours.peek(after)
        if left is None or right is None or not (left.is_after_varied and right.is_before_varied):
            return
        occurrences = self._runs.get(run)
        if occurrences is None:
            occurrences = []
            self._runs.put(run, occurrences)
        if all(before != first and after != last for first, last in occurrences):
            occurrences.append((before, after))


def _moved_runs(keys: Run, places: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return the longest common runs that two requests have in another order: their places in
    both, and their lengths. What is always first or last, as instructions and questions are, is
    never among them.

    Args:
        places: of the paragraphs of the other request.
    """
    runs = _common_runs(keys, places)
    lowest = sys.maxsize  # of the runs behind
    is_before_lower: list[bool] = []
    for _, place, _ in reversed(runs):
        is_before_lower.append(lowest < place)
        lowest = min(lowest, place)
    highest = -1  # of the runs before
    moved = []
    for run, is_moved in zip(runs, reversed(is_before_lower), strict=True):
        if (is_moved or highest > run[1]) and run[2] <= _MAX_DOCUMENT:
            moved.append(run)
        highest = max(highest, run[1])
    return moved


def _common_runs(keys: Run, places: Mapping[int, int]) -> list[tuple[int, int, int]]:
    runs: list[tuple[int, int, int]] = []
    for at, key in enumerate(keys):
        if (place := places.get(key)) is None:
            continue
        if runs and (at, place) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            start, other_start, length = runs.pop()
            runs.append((start, other_start, length + 1))
        else:
            runs.append((at, place, 1))
    return runs


def _beside(keys: Run, at: int, length: int) -> tuple[int, int]:
    """Return the paragraphs before and after a run; 0 at the ends of the text."""
    end = at + length
    return keys[at - 1] if at else 0, keys[end] if end < len(keys) else 0


def _paragraphs(text: str, start: int, end: int) -> list[_Paragraph]:
    """Return what blank lines separate; nothing of a text with too many of them."""
    if text.count(_SEPARATOR, start, end) >= _MAX_PARAGRAPHS:
        return []
    paragraphs: list[_Paragraph] = []
    for stop in [*finds(text, _SEPARATOR, start, end), end]:
        first, last = strip(text, start, stop)
        if first < last:
            paragraphs.append(_Paragraph(first, last, hash(text[first:last])))
        start = stop
    return paragraphs
