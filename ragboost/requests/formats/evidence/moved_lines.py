"""Find the lines that two texts have in another order."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ragboost.requests.formats.evidence.line_digests import Digests


class MovedLines(NamedTuple):
    keys: Sequence[int]
    swaps: Sequence[frozenset[int]]  # the first lines of neighbours that have changed places


_NONE = MovedLines((), ())


def moved_lines(text: Digests, other: Digests) -> MovedLines:
    """Return the lines that stand before one in one text and behind it in the other.

    What is always first or last, as instructions and questions are, is never among them.
    """
    places = dict(zip(other.keys, range(len(other.keys)), strict=True))
    skip = text.repeated | other.repeated | text.weak
    common = [key for key in text.keys if key in places and key not in skip]
    order = [places[key] for key in common]
    highest = list(accumulate(order, max))
    if highest == order:
        return _NONE
    lowest = reversed(list(accumulate(reversed(order), min)))
    moved = [
        (key, place)
        for key, place, top, low in zip(common, order, highest, lowest, strict=True)
        if top > place or low < place
    ]
    runs = moved[:1] + [b for a, b in pairwise(moved) if b[1] != a[1] + 1]
    swaps = [frozenset((a[0], b[0])) for a, b in pairwise(runs) if a[1] > b[1]]
    return MovedLines([key for key, _ in moved], swaps)
