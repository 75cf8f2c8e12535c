"""Tell where the last document of a list ends whose documents have marks at their beginnings only.

Behind it stands a line that all texts have, and before that line a document which stood elsewhere
in another text.
"""

from collections import Counter
from collections.abc import Sequence, Set

from ragboost.formats.frames.line_digests import Digests
from ragboost.formats.frames.recurrence import MIN_OBSERVATIONS, Run, constants


def documents(texts: Sequence[Digests]) -> tuple[Run, ...]:
    """Return the lines of each document of the last text; empty if its end is not certain."""
    dropped = frozenset().union(*[text.repeated for text in texts])
    known = constants(texts) - dropped
    tails = [_tail(text, known) for text in texts]
    if len({mark for _, mark in tails}) > 1:
        return ()
    ends = Counter(key for text in texts for key in _ends(text, dropped))
    num = 0
    for text, (at, _) in zip(texts, tails, strict=True):
        last = _last_line(text, text.marks[-1], at, dropped)
        num += ends[text.keys[last]] > 0
    if num < max(MIN_OBSERVATIONS, len(texts) // 3):
        return ()
    return _runs(texts[-1], tails[-1][0], dropped)


def _tail(text: Digests, known: Set[int]) -> tuple[int, int]:
    for i in range(text.marks[-1] + 1, len(text.keys)):
        for mark in (text.keys[i], text.labels[i]):
            if mark in known:
                return i, mark
    return len(text.keys), 0


def _ends(text: Digests, dropped: Set[int]) -> list[int]:
    """Return the last lines of all documents but the last one."""
    marks = text.marks
    return [
        text.keys[_last_line(text, first, end, dropped)]
        for first, end in zip(marks, marks[1:], strict=False)
    ]


def _last_line(text: Digests, first: int, end: int, dropped: Set[int]) -> int:
    for i in range(end - 1, first, -1):
        if text.keys[i] not in dropped:
            return i
    return first


def _runs(text: Digests, tail: int, dropped: Set[int]) -> tuple[Run, ...]:
    """Return the documents without the lines that stand between all of them."""
    blocks = list(zip(text.marks, [*text.marks[1:], tail], strict=True))
    ends = [_last_line(text, *block, dropped) + 1 for block in blocks]
    gaps = [tuple(text.keys[end:stop]) for end, (_, stop) in zip(ends, blocks, strict=True)]
    if len(set(gaps[:-1])) == 1 and gaps[-1] in ((), gaps[0]):
        return tuple([(first, end) for (first, _), end in zip(blocks, ends, strict=True)])
    return tuple(blocks) if not gaps[-1] else ()
