"""Keep the turns of conversations in order inside a batch.

Knows which request belongs to which conversation. Does not know documents.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class BatchTurns(NamedTuple):
    """A batch's requests by their place in their conversation, as indices into the batch.

    Attributes:
        leading: requests with no turn before them.
        later: for some of `leading`, the later turns of their conversation, in turn order.
        going_on: turns of conversations that began before the batch, in the batch's order.
    """

    leading: tuple[int, ...]
    later: Mapping[int, tuple[int, ...]]
    going_on: tuple[int, ...]

    def release_order(self, leading_order: Sequence[int]) -> tuple[int, ...]:
        """The order in which to send the batch.

        Conversations that go on come first, as their history is in the cache now; each later turn
        follows its first turn directly, while that one's history is.

        Args:
            leading_order: positions in `leading`, in the order planned for them.
        """
        order = list(self.going_on)
        for at in leading_order:
            first = self.leading[at]
            order.append(first)
            order.extend(self.later.get(first, ()))
        return tuple(order)


def group_turns(sessions: Sequence[str | None], going_on: Collection[str]) -> BatchTurns:
    """Group a batch's requests by conversation.

    Args:
        sessions: each request's conversation; None if it stands alone.
        going_on: conversations that began before the batch.
    """
    first: dict[str, int] = {}
    leading, early = [], []
    later: dict[int, tuple[int, ...]] = {}
    for i, session in enumerate(sessions):
        if session is not None and session in going_on:
            early.append(i)
        elif session is not None and session in first:
            later[first[session]] = (*later.get(first[session], ()), i)
        else:
            leading.append(i)
            if session is not None:
                first[session] = i
    return BatchTurns(tuple(leading), later, tuple(early))
