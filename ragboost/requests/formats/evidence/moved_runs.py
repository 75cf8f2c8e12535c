"""Find the runs of lines that two texts have in another order."""

import sys
from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple


class MovedRun(NamedTuple):
    at: int
    other: int  # place in the other text
    length: int


def moved_runs(keys: Sequence[int], other: Sequence[int], *, skip: Set[int]) -> list[MovedRun]:
    """Return the longest common runs that stand before one in one text and behind it in the other.

    What is always first or last, as instructions and questions are, is never among them.

    Args:
        skip: lines that one of the texts has more than once.
    """
    runs = _common_runs(keys, other, skip)
    lowest = sys.maxsize  # of the runs behind
    is_before_lower: list[bool] = []
    for run in reversed(runs):
        is_before_lower.append(lowest < run.other)
        lowest = min(lowest, run.other)
    highest = -1  # of the runs before
    moved: list[MovedRun] = []
    for run, is_moved in zip(runs, reversed(is_before_lower), strict=True):
        if is_moved or highest > run.other:
            moved.append(run)
        highest = max(highest, run.other)
    return moved


def swaps(runs: Sequence[MovedRun]) -> list[tuple[MovedRun, MovedRun]]:
    """Return the pairs of neighbours among moved runs that have changed places."""
    return [(a, b) for a, b in pairwise(runs) if a.other > b.other]


def _common_runs(keys: Sequence[int], other: Sequence[int], skip: Set[int]) -> list[MovedRun]:
    places = {key: at for at, key in enumerate(other)}
    runs: list[MovedRun] = []
    for at, key in enumerate(keys):
        if (place := places.get(key)) is None or key in skip:
            continue
        last = runs[-1] if runs else None
        if last and (at, place) == (last.at + last.length, last.other + last.length):
            runs[-1] = MovedRun(last.at, last.other, last.length + 1)
        else:
            runs.append(MovedRun(at, place, 1))
    return runs
