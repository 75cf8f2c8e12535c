"""The texts that one application sent lately, and what moved between them."""

from collections import deque
from collections.abc import Sequence

from ragboost.formats.frames.line_digests import Digests
from ragboost.formats.frames.moved_runs import moved_runs, swapped

_MAX_TEXTS = 32
_MAX_LINES = 4096
_MIN_MOVED = 2  # lines of a text that have moved, so that it holds a list


class _Sample:
    __slots__ = ("digests", "moved", "swaps")

    def __init__(self, digests: Digests) -> None:
        self.digests = digests
        self.moved: set[int] = set()  # lines that another sample has in another order
        self.swaps: list[tuple[int, int]] = []  # lines that have changed places


class Traffic:
    """The latest texts with one beginning, at most `_MAX_TEXTS`."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()
        self._num_lines = 0

    def add(self, digests: Digests) -> None:
        new = _Sample(digests)
        for old in self._samples:
            _compare(new, old)
        self._samples.append(new)
        self._num_lines += len(digests.keys)
        while len(self._samples) > _MAX_TEXTS or self._num_lines > _MAX_LINES:
            self._num_lines -= len(self._samples.popleft().digests.keys)

    def moved(self) -> set[int]:
        """Return the lines that have changed their order among themselves.

        One pair does not count, nor one line that changed places with several: an edited list has
        these, too.
        """
        swaps = [swap for sample in self._samples for swap in sample.swaps]
        if not _are_apart(swaps):
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
    skip = new.digests.repeated | old.digests.repeated
    runs = moved_runs(new.digests.keys, old.digests.keys, skip=skip)
    swap = swapped(runs)
    if swap is None:
        return
    for run in runs:
        keys = new.digests.keys[run.at : run.at + run.length]
        new.moved.update(keys)
        old.moved.update(keys)
    first, second = swap
    new.swaps.append((new.digests.keys[first.at], new.digests.keys[second.at]))


def _are_apart(swaps: Sequence[tuple[int, int]]) -> bool:
    """Return True if two of the pairs have no line in common."""
    return any(not {*first} & {*second} for i, first in enumerate(swaps) for second in swaps[:i])
