"""Tell where the documents of a text begin and end from the texts that came before it.

Works on digests of lines. Two lines are apart if each of them had other neighbours, too; they
belong together if neither ever had. Before and behind the list stands a line that all texts have.

    | head ... | mark | d1 d1 d1 | d2 | d3 d3 | mark | tail ... |      lines of one text
                      first                   end
"""

from collections import Counter
from collections.abc import Sequence, Set
from itertools import groupby, pairwise
from typing import NamedTuple

from ragboost.requests.formats.evidence import line_grid
from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.neighbours import FEW, Neighbours

MIN_OBSERVATIONS = 3
_MANY = 3  # different neighbours, where the number of documents says nothing

Run = tuple[int, int]  # the first line of a document, and the line behind its last one


class Cut(NamedTuple):
    runs: tuple[Run, ...]
    before: int  # the last line before them that is not repeated; -1: none
    behind: int  # the first one behind them
    has_head: bool  # the line before them is known to be the template's
    has_tail: bool


class Row(NamedTuple):
    """A text that holds a list, without the lines that occur several times in a text."""

    keys: Sequence[int]
    labels: Sequence[int]
    marks: Sequence[int]  # of lines that every text has once, by all they say or their label
    lines: Sequence[int]  # places in the text
    gaps: Sequence[tuple[int, ...]]  # repeated lines before each line, and at the end
    first_moved: int
    last_moved: int


class _Counts(NamedTuple):
    num: int  # of documents in a list
    sizes: Set[int]  # lines of a document


class _Joints(NamedTuple):
    """Places in a list behind the first line."""

    apart: list[int]  # here a document ends
    doubtful: list[int]


class _Edges(NamedTuple):
    """The ends of the lists, by the row; not `is_proven`: those of the text."""

    at: Sequence[int]
    is_proven: bool
    num: int = 0  # texts that show it


class ListModel:
    """The lists of some texts with one beginning.

    Args:
        texts: which hold a list; the last one is to be cut.
        moved: lines that changed their order among themselves.
    """

    def __init__(self, texts: Sequence[Digests], moved: Set[int]) -> None:
        self._moved = moved
        self._rows = _rows(texts, moved)
        rows = self._rows
        self._neighbours = Neighbours([row.keys for row in rows])  # of whole texts at first
        heads = self._edges([_head(row) for row in rows], step=1)
        tails = self._edges([_tail(row) for row in rows], step=-1)
        self._grid = _grid(rows, heads, tails)
        self._has_head = heads.is_proven or bool(self._grid)
        self._has_tail = tails.is_proven or bool(self._grid)
        self._first = [at + 1 if self._has_head else 0 for at in heads.at]
        self._end = [
            at if self._has_tail else len(row.keys) for at, row in zip(tails.at, rows, strict=True)
        ]
        self._lists = [
            row.keys[first:end]
            for row, first, end in zip(rows, self._first, self._end, strict=True)
        ]
        self._neighbours = Neighbours(self._lists)
        self._joints = [self._find_joints(keys) for keys in self._lists]

    def cut(self) -> Cut | None:
        """Return the lines of each document of the last text; None if they are not certain."""
        keys = self._lists[-1]
        if self._grid and self._are_joined_alike() and not self._is_interrupted(0, len(keys)):
            return self._lines_of([0, *self._grid, len(keys)], is_closed=True)
        counts = self._count() if self._has_head and self._has_tail else None
        starts = self._joints_of(keys, counts)
        if starts is None or not self._are_joined_alike():
            return None
        bounds = [0, *starts, len(keys)]
        units = [keys[start:end] for start, end in pairwise(bounds)]
        low, high = 0, len(units)
        while low < high and not self._is_certain(units[low], counts, is_first=low == 0):
            low += 1
        while high > low and not self._is_certain(
            units[high - 1], counts, is_last=high == len(units)
        ):
            high -= 1
        if high - low < 2 or self._is_interrupted(bounds[low], bounds[high]):
            return None
        cut = self._lines_of(bounds[low : high + 1])
        has_head, has_tail = self._has_head and low == 0, self._has_tail and high == len(units)
        return cut._replace(has_head=has_head, has_tail=has_tail)

    def _lines_of(self, bounds: Sequence[int], *, is_closed: bool = False) -> Cut:
        lines = [-1, *self._rows[-1].lines, -1]
        at = [self._first[-1] + 1 + bound for bound in bounds]
        runs = [(lines[start], lines[end - 1] + 1) for start, end in pairwise(at)]
        return Cut(tuple(runs), lines[at[0] - 1], lines[at[-1]], is_closed, is_closed)

    def _edges(self, found: Sequence[tuple[int, int]], *, step: int) -> _Edges:
        """Tell if documents are known to stand right beside a line that all texts have.

        Args:
            step: from this line to the documents, 1 or -1.
        """
        places = [at for at, _ in found]
        if len({mark for _, mark in found}) > 1:
            return _Edges(places, False)
        beside = [at + step for at in places]
        if not all(0 <= at < len(row.keys) for at, row in zip(beside, self._rows, strict=True)):
            return _Edges(places, False)
        keys = [row.keys[at] for at, row in zip(beside, self._rows, strict=True)]
        num = sum(map(self._is_start if step > 0 else self._is_end, keys))
        is_mark = found[0][1] != 0
        if not is_mark and self._is_template(beside):
            return _Edges(places, False)
        least = max(MIN_OBSERVATIONS, len(keys) // (3 if is_mark else 2))
        return _Edges(places, num >= least, num)

    def _is_template(self, places: Sequence[int]) -> bool:
        """Return True if the lines at an end of the texts have something in common which lines
        elsewhere have not."""
        at_end: Counter[int] = Counter()
        elsewhere: set[int] = set()
        for row, place in zip(self._rows, places, strict=True):
            for i, names in enumerate(zip(row.keys, row.labels, strict=True)):
                if i == place:
                    at_end.update(names)
                else:
                    elsewhere.update(names)
        return any(
            num >= MIN_OBSERVATIONS for name, num in at_end.items() if name not in elsewhere | {0}
        )

    def _is_start(self, key: int) -> bool:
        after = self._neighbours.after
        return any(
            other in self._moved and len(after[other]) >= FEW
            for other in self._neighbours.before[key]
        )

    def _is_end(self, key: int) -> bool:
        before = self._neighbours.before
        return any(
            other in self._moved and len(before[other]) >= FEW
            for other in self._neighbours.after[key]
        )

    def _is_interrupted(self, start: int, end: int) -> bool:
        """Return True if a line that all texts have stands among the documents."""
        row, first = self._rows[-1], self._first[-1]
        return any(row.marks[i] == row.keys[i] for i in range(first + start, first + end))

    def _are_joined_alike(self) -> bool:
        """Return True if the same repeated lines stand between all documents, in all texts, and
        the same before the first and behind the last ones."""
        heads, tails, joins = set(), set(), set()
        for row, first, end, joints in zip(
            self._rows, self._first, self._end, self._joints, strict=True
        ):
            heads.add(row.gaps[first])
            tails.add(row.gaps[end])
            joins |= {row.gaps[first + i] for i in joints.apart}
        return (
            len(joins) == 1
            and (not self._has_head or len(heads) == 1)
            and (not self._has_tail or len(tails) == 1)
        )

    def _count(self) -> _Counts | None:
        """Return how many documents all lists have whose lines are all known; None if it varies."""
        nums: list[int] = []
        sizes: set[int] = set()
        for keys, (apart, doubtful) in zip(self._lists, self._joints, strict=True):
            if doubtful or any(self._neighbours.num[key] < FEW for key in keys):
                continue
            nums.append(len(apart) + 1)
            sizes.update(end - start for start, end in pairwise([0, *apart, len(keys)]))
        if len(nums) < MIN_OBSERVATIONS or len(set(nums)) > 1:
            return None
        return _Counts(nums[0], sizes)

    def _joints_of(self, keys: Sequence[int], counts: _Counts | None) -> list[int] | None:
        """Return where documents begin behind the first one; None if that is not certain."""
        if counts is None:
            return self._clear_joints(keys)
        apart, doubtful = self._joints[-1]
        if len(apart) + 1 > counts.num:
            return None
        both = sorted([*apart, *doubtful])
        is_counted = len(both) + 1 == counts.num and self._are_single(keys, counts)
        return both if is_counted else apart

    def _are_single(self, keys: Sequence[int], counts: _Counts) -> bool:
        """Return True if new lines can be no more than one document each, as others are.

        Else the first of them could belong to the document before them.
        """
        runs = groupby(keys, self._neighbours.is_new)
        sizes = {len(list(run)) for is_new, run in runs if is_new} - {1}
        return not sizes or sizes == counts.sizes

    def _find_joints(self, keys: Sequence[int]) -> _Joints:
        apart: list[int] = []
        doubtful: list[int] = []
        for i, (first, second) in enumerate(pairwise(keys), 1):
            if self._neighbours.are_apart(first, second):
                apart.append(i)
            elif not self._neighbours.are_together(first, second):
                doubtful.append(i)
        return _Joints(apart, doubtful)

    def _clear_joints(self, keys: Sequence[int]) -> list[int] | None:
        """Return where lines are apart beyond doubt; None if it is doubtful between documents.

        What is new stays with its neighbours.
        """
        joints = []
        row = self._rows[-1]
        inner = range(row.first_moved - self._first[-1], row.last_moved - self._first[-1])
        for i, (first, second) in enumerate(pairwise(keys), 1):
            beside = self._neighbours
            if beside.is_new(first) or beside.is_new(second):
                continue
            if beside.are_apart(first, second, _MANY) and beside.are_rarely_together(first, second):
                joints.append(i)
            elif not beside.are_together(first, second) and i - 1 in inner:
                return None
        return joints

    def _is_certain(
        self,
        keys: Sequence[int],
        counts: _Counts | None,
        *,
        is_first: bool = False,
        is_last: bool = False,
    ) -> bool:
        """Return True for what can be the first or the last document that is moved."""
        if not self._is_whole(keys):
            return False
        if counts is None or not (is_first or is_last):
            return self._is_inner(keys)
        if (is_first and self._is_start(keys[0])) or (is_last and self._is_end(keys[-1])):
            return True
        is_known = self._neighbours.num[keys[0]] > 1
        return is_known or {len(keys)} == counts.sizes  # else a paragraph may stand beside it

    def _is_whole(self, keys: Sequence[int]) -> bool:
        """Return True for lines that are all new, or all known and never apart."""
        num = self._neighbours.num
        are_known = {num[key] > 1 for key in keys}
        return len(are_known) == 1 and not any(self._find_joints(keys))

    def _is_inner(self, keys: Sequence[int]) -> bool:
        """Return True for lines that are one document between others, in one of the texts."""
        if not self._is_whole(keys):
            return False
        for row in self._rows:
            places = {key: i for i, key in enumerate(row.keys)}
            first, last = places.get(keys[0], -1), places.get(keys[-1], len(row.keys))
            if row.first_moved < first and last < row.last_moved:
                return True
        return False


def _grid(rows: Sequence[Row], heads: _Edges, tails: _Edges) -> list[int]:
    """Return where documents begin in the last list, if all lists are alike."""
    if min(heads.num, tails.num) < FEW:
        return []
    bounds = zip(rows, heads.at, tails.at, strict=True)
    return line_grid.starts([row.keys[head + 1 : tail] for row, head, tail in bounds])


def _rows(texts: Sequence[Digests], moved: Set[int]) -> list[Row]:
    dropped = frozenset().union(*[text.repeated for text in texts])
    known = constants(texts) - dropped
    rows = []
    for text in texts:
        lines = [i for i, key in enumerate(text.keys) if key not in dropped]
        keys = [text.keys[i] for i in lines]
        marks = [
            key if key in known else text.labels[i] if text.labels[i] in known else 0
            for i, key in zip(lines, keys, strict=True)
        ]
        places = [i for i, key in enumerate(keys) if key in moved] or [-1]
        ends = zip([0, *[line + 1 for line in lines]], [*lines, len(text.keys)], strict=True)
        gaps: list[tuple[int, ...]] = [()] * (len(lines) + 1)
        if len(lines) < len(text.keys):
            gaps = [tuple(text.keys[start:end]) for start, end in ends]
        labels = [text.labels[i] for i in lines]
        rows.append(Row(keys, labels, marks, lines, gaps, places[0], places[-1]))
    return rows


def constants(texts: Sequence[Digests]) -> Set[int]:
    """Return the digests of lines and labels that each text has exactly once."""
    counts = Counter([*texts[-1].keys, *texts[-1].labels])
    found = {key for key, num in counts.items() if num == 1}
    for text in texts:
        found = {key for key in found if text.keys.count(key) + text.labels.count(key) == 1}
    return found - {0}


def _head(row: Row) -> tuple[int, int]:
    for i in range(row.first_moved - 1, -1, -1):
        if row.marks[i]:
            return i, row.marks[i]
    return -1, 0


def _tail(row: Row) -> tuple[int, int]:
    for i in range(row.last_moved + 1, len(row.keys)):
        if row.marks[i]:
            return i, row.marks[i]
    return len(row.keys), 0
