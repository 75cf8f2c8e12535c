"""Keep the turns of each conversation in order within a batch.

Knows which request belongs to which conversation. Does not know documents.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class BatchTurns(NamedTuple):
    """The requests of a batch by their place in a conversation, as indices into the batch."""

    leading: tuple[int, ...]  # requests with no turn before them
    # By request of `leading`, the later turns of its conversation, in turn order.
    later: Mapping[int, tuple[int, ...]]
    # Turns of conversations that began before the batch, in the batch's order.
    continued: tuple[int, ...]

    def release_order(self, leading_order: Sequence[int]) -> tuple[int, ...]:
        """Return the order in which to send the batch.

        Continued conversations come first, while their history is cached; each later turn follows
        its first turn directly, for the same reason.

        Args:
            leading_order: positions in `leading`, in their planned order.
        """
        order = list(self.continued)
        for at in leading_order:
            first = self.leading[at]
            order.append(first)
            order.extend(self.later.get(first, ()))
        return tuple(order)


def group_turns(sessions: Sequence[str | None], continued: Collection[str]) -> BatchTurns:
    """Group a batch's requests by conversation.

    Args:
        sessions: the conversation of each request; None without one.
    """
    first: dict[str, int] = {}
    leading, early = [], []
    later: dict[int, tuple[int, ...]] = {}
    for i, session in enumerate(sessions):
        if session is not None and session in continued:
            early.append(i)
        elif session is not None and session in first:
            later[first[session]] = (*later.get(first[session], ()), i)
        else:
            leading.append(i)
            if session is not None:
                first[session] = i
    return BatchTurns(tuple(leading), later, tuple(early))
