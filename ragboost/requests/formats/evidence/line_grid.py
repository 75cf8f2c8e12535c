"""Tell where documents begin in lists of equal size, whose documents have equal numbers of lines.

At each place of such a list documents end in some texts and lines belong together in none, or the
reverse. That also decides for a document that is new.

    | head | d1 d1 | d2 d2 | d3 d3 | tail |      six lines in each text; documents end at 2 and 4
"""

from collections.abc import Sequence
from itertools import groupby, pairwise

from ragboost.requests.formats.evidence.neighbours import Neighbours

_MIN_LISTS = 6


def starts(lists: Sequence[Sequence[int]]) -> list[int]:
    """Return the places where documents begin behind the first one; empty if there is no grid.

    Args:
        lists: digests of the lines that may be documents, without template and repeated lines.
    """
    size = len(lists[-1])
    if len(lists) < _MIN_LISTS or any(len(keys) != size for keys in lists):
        return []
    beside = Neighbours(lists)
    ends, inner = set[int](), set[int]()
    for keys in lists:
        for i, (first, second) in enumerate(pairwise(keys), 1):
            if beside.are_apart(first, second):
                ends.add(i)
            elif beside.num[first] > 1 and beside.are_together(first, second):
                inner.add(i)
    step = min(ends, default=size)
    new = [len(list(run)) for is_new, run in groupby(lists[-1], beside.is_new) if is_new]
    is_regular = size % step == 0 and ends == set(range(step, size, step)) and set(new) <= {step}
    is_complete = len(ends) + len(inner) == size - 1 and ends.isdisjoint(inner)
    return sorted(ends) if is_regular and is_complete else []
