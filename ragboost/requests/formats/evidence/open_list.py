"""Tell where the last document of a list ends whose documents have marks at their beginnings only.

It ends before a line that all texts have, or with the text, if its lines are those of a document
that stood elsewhere in another text. Else it stays where it is, and the others may move.
"""

from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from ragboost.requests.formats.evidence.line_digests import Digests
from ragboost.requests.formats.evidence.recurrence import MIN_OBSERVATIONS, Run, constants

Keys = tuple[int, ...]


class _Block(NamedTuple):
    """A document, and the repeated lines between it and the next one."""

    first: int
    end: int
    keys: Keys
    gap: Keys


def documents(texts: Sequence[Digests]) -> tuple[Run, ...]:
    """Return the lines of each document of the last text that may move."""
    dropped = frozenset().union(*[text.repeated for text in texts])
    everywhere = constants(texts)
    # A label that fills its line, as `Passage 1:` does, is no part of a document.
    dropped |= everywhere & {text.keys[mark] for text in texts for mark in text.marks}
    known = everywhere - dropped
    tails = [_tail(text, known) for text in texts]
    lists = [_blocks(text, at, dropped) for text, (at, _) in zip(texts, tails, strict=True)]
    inner = [block for blocks in lists for block in blocks[:-1]]
    if any(_is_interrupted(block, known) for block in lists[-1][:-1]):
        return ()
    contents = {block.keys for block in inner}
    num = sum(blocks[-1].keys in contents for blocks in lists)
    if num < MIN_OBSERVATIONS:
        return ()
    *blocks, last = lists[-1]
    is_last_certain = len({mark for _, mark in tails}) == 1 and (
        last.keys in contents or {len(last.keys)} == {len(block.keys) for block in inner}
    )
    gaps = {block.gap for block in inner}
    ends = {blocks[-1].gap for blocks in lists}
    if is_last_certain and len(gaps) == len(ends) == 1 and ends <= gaps | {()}:
        return tuple([(block.first, block.end) for block in lists[-1]])
    return tuple([(block.first, block.end + len(block.gap)) for block in blocks])


def _is_interrupted(block: _Block, known: Set[int]) -> bool:
    """Return True if a line of the template stands behind the document."""
    return 0 < sum(key in known for key in block.keys) < len(block.keys)


def _tail(text: Digests, known: Set[int]) -> tuple[int, int]:
    """Return the first line behind the list, and its mark; 0: none."""
    for i in range(text.marks[-1] + 1, len(text.keys)):
        for mark in (text.keys[i], text.labels[i]):
            if mark in known:
                return i, mark
    return len(text.keys), 0


def _blocks(text: Digests, tail: int, dropped: Set[int]) -> list[_Block]:
    return [_block(text, *bounds, dropped) for bounds in pairwise([*text.marks, tail])]


def _block(text: Digests, first: int, stop: int, dropped: Set[int]) -> _Block:
    end = stop
    while end > first + 1 and text.keys[end - 1] in dropped:
        end -= 1
    keys = tuple([key for key in text.keys[first:end] if key not in dropped])
    return _Block(first, end, keys, tuple(text.keys[end:stop]))
