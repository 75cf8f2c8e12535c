"""The texts that one application sent lately, and what moved between them."""

from collections import deque

from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.moved_runs import moved_runs, swaps

_MAX_TEXTS = 32
_MAX_LINES = 2048
_MAX_SWAPS = 16  # of two texts
_MIN_SWAPS = 2
_MIN_MOVED = 2  # lines of a text that have moved, so that it holds a list


class _Sample:
    __slots__ = ("digests", "moved", "swaps")

    def __init__(self, digests: Digests) -> None:
        self.digests = digests
        self.moved: set[int] = set()  # lines that another sample has in another order
        self.swaps: list[frozenset[int]] = []  # lines that have changed places

    def copy(self) -> "_Sample":
        copy = _Sample(self.digests)
        copy.moved, copy.swaps = set(self.moved), list(self.swaps)
        return copy


class Traffic:
    """The latest texts with one beginning, at most `_MAX_TEXTS`."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._num_lines = 0

    def copy(self) -> "Traffic":
        copy = Traffic()
        copy._samples.extend([sample.copy() for sample in self._samples])
        copy._num_lines = self._num_lines
        return copy

    def add(self, digests: Digests) -> None:
        new = _Sample(digests)
        for old in self._samples:
            _compare(new, old)
        self._samples.append(new)
        self._num_lines += len(digests.keys)
        while len(self._samples) > _MAX_TEXTS or self._num_lines > _MAX_LINES:
            self._num_lines -= len(self._samples.popleft().digests.keys)

    @property
    def size_bytes(self) -> int:
        return sum(
            sample.digests.size_bytes + 80 * len(sample.moved) + 300 * len(sample.swaps)
            for sample in self._samples
        )

    def moved(self) -> set[int]:
        """Return the lines that have changed their order among themselves.

        One pair does not count, nor one line that changed places with others: lists that are
        edited have these, too.
        """
        swaps = [swap for sample in self._samples for swap in sample.swaps]
        if len(swaps) < _MIN_SWAPS or frozenset.intersection(*swaps):
            return set()
        return set().union(*[sample.moved for sample in self._samples])

    def lists(self, moved: set[int]) -> list[Digests]:
        """Return the texts that hold lines which moved, the latest last."""
        return [
            sample.digests
            for sample in self._samples
            if sum(key in moved for key in sample.digests.keys) >= _MIN_MOVED
        ]

    def latest(self) -> list[Digests]:
        return [sample.digests for sample in self._samples]


def _compare(new: _Sample, old: _Sample) -> None:
    skip = new.digests.repeated | old.digests.repeated | new.digests.weak
    runs = moved_runs(new.digests.keys, old.digests.keys, skip=skip)
    for run in runs:
        keys = new.digests.keys[run.at : run.at + run.length]
        new.moved.update(keys)
        old.moved.update(keys)
    keys = new.digests.keys
    new.swaps.extend([frozenset((keys[a.at], keys[b.at])) for a, b in swaps(runs)][:_MAX_SWAPS])
