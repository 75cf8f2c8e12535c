"""Tell where the documents of a text begin and end from the texts that came before it.

Works on digests of lines. Two lines are apart if each of them had other neighbours, too; they
belong together if neither ever had. Before and behind the list stands a line that all texts have.

    | head ... | mark | d1 d1 d1 | d2 | d3 d3 | mark | tail ... |      lines of one text
                      first                   end
"""

from collections import Counter
from collections.abc import Sequence, Set
from functools import partial
from itertools import groupby, pairwise
from typing import NamedTuple

from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.neighbours import Neighbours
from ragboost.requests.formats.evidence.template import MIN_OBSERVATIONS, Run, Template

_FEW = 2  # texts that show an end of equal lists
_MIN_EQUAL = 6  # lists of one size


class Cut(NamedTuple):
    runs: Sequence[Run]
    before: int = -1  # the last line before them that is not repeated; -1: none
    behind: int = -1  # the first one behind them
    has_head: bool = False  # the line before them is known to be the template's
    has_tail: bool = False
    has_marks: bool = False  # where documents begin was said
    has_numbers: bool = False  # numbers before documents belong to places


class _Row:
    """A text that holds a list, without the lines that occur several times in a text."""

    def __init__(self, text: Digests, template: Template, moved: Set[int]) -> None:
        self.text = text
        names = template.constants
        self.lines = [i for i, key in enumerate(text.keys) if key not in template.dropped]
        self.keys = keys = [text.keys[i] for i in self.lines]
        labels = [text.labels[i] for i in self.lines]
        # Lines that every text has once, by all they say or by their label.
        self.marks = {i: name for i, name in enumerate(labels) if name in names}
        self.constants = {i: name for i, name in enumerate(keys) if name in names}
        self.marks.update(self.constants)
        places = [i for i, key in enumerate(keys) if key in moved] or [-1]
        self.first_moved, self.last_moved = places[0], places[-1]
        self.head = max((i for i in self.marks if i < self.first_moved), default=-1)
        self.tail = min((i for i in self.marks if i > self.last_moved), default=len(keys))
        for i in {self.head, self.tail} & self.marks.keys():
            keys[i] = self.marks[i]  # called alike in all texts

    def gap(self, i: int) -> tuple[int, ...]:
        """Return the repeated lines before a line, or at the end."""
        start = self.lines[i - 1] + 1 if i else 0
        end = self.lines[i] if i < len(self.lines) else len(self.text.keys)
        return tuple(self.text.keys[start:end])


class _Edge(NamedTuple):
    """One end of all lists."""

    mark: int = 0  # of the line that all texts have there; 0: the list begins or ends the text
    num: int = 0  # texts that show it
    is_proven: bool = False


class ListModel:
    """The lists of texts with one beginning: learns text by text.

    Args:
        moved: lines that changed their order among themselves.
    """

    def __init__(self, texts: Sequence[Digests], moved: Set[int]) -> None:
        self._moved = moved
        self.template = Template(texts)
        rows = [_Row(text, self.template, moved) for text in texts]
        self._neighbours = Neighbours([row.keys for row in rows])
        self._head = self._edge(rows, [row.head for row in rows], step=1)
        self._tail = self._edge(rows, [row.tail for row in rows], step=-1)
        self._heads, self._tails, self._joins = (set[tuple[int, ...]]() for _ in range(3))
        self._nums, self._sizes = set[int](), set[int]()  # of lists whose lines are all known
        self._num_known = 0
        self._inner: dict[int, int] = {}  # bit n: the line stood between others in list n
        # Ends and beginnings of documents that stood beside another one, in lists of each number.
        self._sides: dict[int, tuple[set[int], set[int]]] = {}
        self._num_rows = 0
        self._numbered: Counter[tuple[int, int]] = Counter()  # lines with their numbers
        self._size, self._step = self._find_step(rows)
        if self._step:
            self._head = self._head._replace(is_proven=True)
            self._tail = self._tail._replace(is_proven=True)
        for row in rows:
            self._observe(row)

    def add(self, text: Digests) -> bool:
        """Learn from a text; return False if it is not like the others."""
        row = _Row(text, self.template, self._moved)
        self._neighbours.add(row.keys)
        for edge, at in ((self._head, row.head), (self._tail, row.tail)):
            if edge.is_proven and row.marks.get(at, 0) != edge.mark:
                return False
        self._observe(row)
        return not self._step or (len(self._keys) == self._size and self._is_equal())

    def cut(self) -> Cut | None:
        """Return the lines of each document of the latest text; None if they are not certain."""
        if not self._are_joined_alike():
            return None
        if self._step:
            new = groupby(self._keys, self._neighbours.is_new)
            if {len(list(run)) for is_new, run in new if is_new} <= {self._step}:
                return self._cut_at(
                    range(0, self._size + 1, self._step), has_head=True, has_tail=True
                )
        num = self._num_documents()
        starts = self._counted_starts(num) if num else self._clear_starts()
        if starts is None:
            return None
        ends = [0, *starts, len(self._keys)]
        units = [self._keys[start:end] for start, end in pairwise(ends)]
        is_certain = partial(self._is_certain, num=num)
        low, high = 0, len(units)
        while low < high and not is_certain(units[low], is_first=low == 0):
            low += 1
        while high > low and not is_certain(units[high - 1], is_last=high == len(units)):
            high -= 1
        return self._cut_at(
            ends[low : high + 1],
            has_head=self._head.is_proven and low == 0,
            has_tail=self._tail.is_proven and high == len(units),
        )

    def _cut_at(self, bounds: Sequence[int], *, has_head: bool, has_tail: bool) -> Cut | None:
        row = self._row
        inside = range(self._first + bounds[0], self._first + bounds[-1])
        if len(bounds) < 3 or any(i in row.constants for i in inside):
            return None  # a line that all texts have stands among them
        lines = [-1, *row.lines, -1]
        at = [self._first + 1 + bound for bound in bounds]
        runs = [(lines[start], lines[end - 1] + 1) for start, end in pairwise(at)]
        numbers = self._have_places(runs)
        if numbers is None:
            return None
        return Cut(runs, lines[at[0] - 1], lines[at[-1]], has_head, has_tail, has_numbers=numbers)

    def _have_places(self, runs: Sequence[Run]) -> bool | None:
        """Return True if the numbers before documents belong to places, False if to documents or if
        there are none; None if that is not certain."""
        text = self._row.text
        numbers = [text.numbers[first] for first, _ in runs]
        if max(numbers) < 0:
            return False
        lines = [(text.keys[first], text.numbers[first]) for first, _ in runs]
        num_other = sum(self._neighbours.num[line[0]] - self._numbered[line] for line in lines)
        if numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            is_last = numbers[-1] + 1 not in text.numbers[slice(*runs[-1])]
            return True if num_other > 1 and is_last else None
        return None if num_other else False

    def _edge(self, rows: Sequence[_Row], places: Sequence[int], *, step: int) -> _Edge:
        """Tell if documents are known to stand right beside a line that all texts have.

        Args:
            step: from this line to the documents, 1 or -1.
        """
        marks = {row.marks.get(at, 0) for row, at in zip(rows, places, strict=True)}
        beside = [(row, at + step) for row, at in zip(rows, places, strict=True)]
        if len(marks) > 1 or not all(0 <= at < len(row.keys) for row, at in beside):
            return _Edge()
        mark = marks.pop()
        is_documents = self._is_start if step > 0 else self._is_end
        num = sum(is_documents(row.keys[at]) for row, at in beside)
        return _Edge(mark, num, num >= max(MIN_OBSERVATIONS, len(rows) // (3 if mark else 2)))

    def _is_start(self, key: int) -> bool:
        return self._neighbours.stood_behind(key, self._moved)

    def _is_end(self, key: int) -> bool:
        return self._neighbours.stood_before(key, self._moved)

    def _find_step(self, rows: Sequence[_Row]) -> tuple[int, int]:
        """Return the lines of all lists and of all documents, if these are equally long.

        At each place of such lists documents end in some texts and lines belong together in none,
        or the reverse. That also decides for a document that is new. 0: no such lists.
        """
        lists = [row.keys[row.head + 1 : row.tail] for row in rows]
        size = len(lists[-1])
        is_equal = len(lists) >= _MIN_EQUAL and {len(keys) for keys in lists} == {size}
        if not is_equal or min(self._head.num, self._tail.num) < _FEW:
            return 0, 0
        ends, inner = set[int](), set[int]()
        for keys in lists:
            apart, together = self._ends_and_inner(keys)
            ends |= apart
            inner |= together
        step = min(ends, default=0)
        is_regular = step > 0 and size % step == 0 and ends == set(range(step, size, step))
        is_complete = len(ends) + len(inner) == size - 1 and ends.isdisjoint(inner)
        return (size, step) if is_regular and is_complete else (0, 0)

    def _ends_and_inner(self, keys: Sequence[int]) -> tuple[set[int], set[int]]:
        apart, doubtful = self._neighbours.joints(keys)
        together = set(range(1, len(keys))) - {*apart, *doubtful}
        return set(apart), {i for i in together if not self._neighbours.is_new(keys[i - 1])}

    def _is_equal(self) -> bool:
        ends, inner = self._ends_and_inner(self._keys)
        return not any(i % self._step for i in ends) and all(i % self._step for i in inner)

    def _observe(self, row: _Row) -> None:
        """Learn from a row whose neighbours are known."""
        self._row = row
        self._first = row.head + 1 if self._head.is_proven else 0
        end = row.tail if self._tail.is_proven else len(row.keys)
        self._keys = row.keys[self._first : end]
        self._joints = apart, doubtful = self._neighbours.joints(self._keys)
        self._heads.add(row.gap(self._first))
        self._tails.add(row.gap(end))
        self._joins.update([row.gap(self._first + i) for i in apart])
        if not doubtful and self._neighbours.are_known(self._keys):
            self._num_known += 1
            self._nums.add(len(apart) + 1)
            self._sizes.update([b - a for a, b in pairwise([0, *apart, len(self._keys)])])
        ends, starts = self._sides.setdefault(len(apart) + len(doubtful) + 1, (set(), set()))
        ends.update([self._keys[i - 1] for i in (*apart, *doubtful)])
        starts.update([self._keys[i] for i in (*apart, *doubtful)])
        bit = 1 << self._num_rows
        if max(row.text.numbers) >= 0:
            self._numbered.update(zip(row.text.keys, row.text.numbers, strict=True))
        for key in row.keys[row.first_moved + 1 : row.last_moved]:
            self._inner[key] = self._inner.get(key, 0) | bit
        self._num_rows += 1

    def _are_joined_alike(self) -> bool:
        """Return True if the same repeated lines stand between all documents, in all texts, and
        the same before the first and behind the last ones."""
        return (
            len(self._joins) == 1
            and (not self._head.is_proven or len(self._heads) == 1)
            and (not self._tail.is_proven or len(self._tails) == 1)
        )

    def _num_documents(self) -> int:
        """Return how many documents all lists have whose lines are all known; 0 if it varies."""
        is_closed = self._head.is_proven and self._tail.is_proven
        is_constant = self._num_known >= MIN_OBSERVATIONS and len(self._nums) == 1
        return min(self._nums) if is_closed and is_constant else 0

    def _counted_starts(self, num: int) -> list[int] | None:
        """Return where documents begin behind the first one; None if they are too many."""
        apart, doubtful = self._joints
        if len(apart) + 1 > num:
            return None
        both = sorted([*apart, *doubtful])
        return both if len(both) + 1 == num and self._are_single() else apart

    def _are_single(self) -> bool:
        """Return True if new lines can be no more than one document each, as others are.

        Else the first of them could belong to the document before them.
        """
        runs = groupby(self._keys, self._neighbours.is_new)
        sizes = {len(list(run)) for is_new, run in runs if is_new} - {1}
        return not sizes or sizes == self._sizes

    def _clear_starts(self) -> list[int] | None:
        """Return where lines are apart beyond doubt; None if it is doubtful between documents."""
        joints = self._neighbours.clear_joints(self._keys)
        low, high = self._row.first_moved - self._first, self._row.last_moved - self._first
        for i in {*self._joints.apart, *self._joints.doubtful} - set(joints):
            are_known = self._neighbours.are_known(self._keys[i - 1 : i + 1])
            if low < i <= high and are_known:
                return None
        return joints

    def _is_certain(
        self, keys: Sequence[int], *, num: int, is_first: bool = False, is_last: bool = False
    ) -> bool:
        """Return True for what can be the first or the last document that is moved."""
        are_new = {self._neighbours.is_new(key) for key in keys}
        if len(are_new) > 1 or any(self._neighbours.joints(keys)):
            return False  # not all new, and not all known and never apart
        if not (num and (is_first or is_last)):  # between others, in one of the texts
            return self._inner.get(keys[0], 0) & self._inner.get(keys[-1], 0) != 0
        if (is_first and self._is_start(keys[0])) or (is_last and self._is_end(keys[-1])):
            return True
        # Else a paragraph may stand beside it, or the tail of a new template.
        if False in are_new:
            ends, starts = self._sides[num]
            is_inside = (is_first and keys[0] in starts) or (is_last and keys[-1] in ends)
            return is_inside or (len(keys) in self._sizes and not self._moved.isdisjoint(keys))
        return {len(keys)} == self._sizes
