"""The lines that stood beside each line in the lists of some texts."""

from collections import Counter
from collections.abc import Sequence

_HEAD, _TAIL = 1, 2  # neighbours of the first and of the last line of a list
FEW = 2  # different neighbours that show that two lines are apart


class Neighbours:
    """Count the lines before and behind each line.

    Two lines are apart if each of them had other neighbours, too; they belong together if neither
    ever had.
    """

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self.before: dict[int, dict[int, int]] = {}
        self.after: dict[int, dict[int, int]] = {}
        self.num: Counter[int] = Counter()
        for keys in rows:
            self.num.update(keys)
            last = _HEAD
            for key in keys:
                self._add(last, key)
                last = key
            self._add(last, _TAIL)

    def _add(self, first: int, second: int) -> None:
        after = self.after.setdefault(first, {})
        after[second] = after.get(second, 0) + 1
        before = self.before.setdefault(second, {})
        before[first] = before.get(first, 0) + 1

    def is_new(self, key: int) -> bool:
        return self.num[key] == 1

    def are_apart(self, first: int, second: int, least: int = FEW) -> bool:
        return len(self.after[first]) >= least and len(self.before[second]) >= least

    def are_together(self, first: int, second: int) -> bool:
        return len(self.after[first]) == 1 and len(self.before[second]) == 1

    def are_rarely_together(self, first: int, second: int) -> bool:
        num = self.after[first][second]
        return 3 * num <= min(self.num[first], self.num[second])
