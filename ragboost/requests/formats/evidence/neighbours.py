"""The lines that stood beside each line in some texts."""

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

_START, _END = 1, 2  # neighbours of the first and of the last line of a text
_FEW = 2  # different neighbours that show that two lines are apart
_MANY = 3


class Joints(NamedTuple):
    """Places between the lines of a list; 1 stands behind the first line."""

    apart: list[int]  # here a document ends
    doubtful: list[int]


class Neighbours:
    """Count the lines before and behind each line.

    Two lines are apart if each of them had other neighbours, too; they belong together if neither
    ever had.
    """

    def __init__(self, texts: Iterable[Sequence[int]]) -> None:
        self.before: dict[int, dict[int, int]] = {}
        self.after: dict[int, dict[int, int]] = {}
        self.num: Counter[int] = Counter()
        for keys in texts:
            self.add(keys)

    def add(self, keys: Sequence[int]) -> None:
        self.num.update(keys)
        for first, second in zip((_START, *keys), (*keys, _END), strict=True):
            after = self.after.setdefault(first, {})
            after[second] = after.get(second, 0) + 1
            before = self.before.setdefault(second, {})
            before[first] = before.get(first, 0) + 1

    def is_new(self, key: int) -> bool:
        return self.num[key] == 1

    def are_known(self, keys: Iterable[int]) -> bool:
        return all(map((1).__lt__, map(self.num.__getitem__, keys)))

    def joints(self, keys: Sequence[int]) -> Joints:
        after, before = self.after, self.before
        joints = Joints([], [])
        for i, (first, second) in enumerate(pairwise(keys), 1):
            num_after, num_before = len(after[first]), len(before[second])
            if num_after >= _FEW and num_before >= _FEW:
                joints.apart.append(i)
            elif num_after > 1 or num_before > 1:
                joints.doubtful.append(i)
        return joints

    def clear_joints(self, keys: Sequence[int]) -> list[int]:
        """Return where lines are apart beyond doubt. What is new stays with its neighbours."""
        return [i for i, (a, b) in enumerate(pairwise(keys), 1) if self._are_clearly_apart(a, b)]

    def _are_clearly_apart(self, first: int, second: int) -> bool:
        least = min(self.num[first], self.num[second])
        after = self.after[first]
        is_rare = least > 1 and 3 * after[second] <= least
        return is_rare and len(after) >= _MANY and len(self.before[second]) >= _MANY

    def stood_behind(self, key: int, keys: Set[int]) -> bool:
        """Return True if the line stood behind one of these that had others behind it, too."""
        return any(k in keys and len(self.after[k]) >= _FEW for k in self.before[key])

    def stood_before(self, key: int, keys: Set[int]) -> bool:
        return any(k in keys and len(self.before[k]) >= _FEW for k in self.after[key])
