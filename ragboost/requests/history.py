"""Remember what engines were sent for the messages of conversations, to send it again.

A message is found by its link, a hash of it, of all messages before it and of whose they are. The
documents inside messages are part of that, so that a resent history finds its own rewriting, and
nobody gets a text that is not in the request. Documents beside the messages belong to a
conversation only if it has a name.
"""

import time
from collections.abc import Callable, Sequence
from typing import Self

from ragboost.config import Settings
from ragboost.requests.json_body import Link
from ragboost.requests.sent_history import Conversation, HistoryDelta, MessageForm
from ragboost.util.bounded_map import BoundedMap

_MAX_FORMS = 8  # of one message: branches of a conversation


class History:
    """The messages of all conversations as they were sent, bounded by bytes and age.

    messages  |  q1  |  a1  |  q2  |  call  | result |
    forms     |  q1' |      |  q2' |        | result |   the last message in any form

    Args:
        clock: monotonic, in seconds.
    """

    def __init__(
        self, *, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._forms: BoundedMap[Link, tuple[MessageForm, ...]] = BoundedMap(
            max_size=max_bytes, ttl_s=ttl_s, clock=clock
        )

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(max_bytes=settings.proxy.memory.conversations, ttl_s=settings.session.ttl_s)

    def __len__(self) -> int:
        return len(self._forms)

    @property
    def num_bytes(self) -> int:
        return self._forms.size

    def known(self, links: Sequence[Link]) -> Conversation:
        """Return what was sent for the messages with these links, which counts as use.

        The last messages count as used first, and are evicted before those that they follow.
        """
        self._forms.expire()
        found: list[MessageForm] = []
        num_known = 0
        for at in range(len(links) - 1, -1, -1):
            if forms := self._forms.peek(links[at]):
                self._forms.touch(links[at])
                found += reversed(forms)
                num_known = num_known or at + 1
        return Conversation(reversed(found), num_known=num_known)

    def add(self, delta: HistoryDelta) -> None:
        """Keep the form in which messages were sent as their newest one."""
        for form in reversed([*delta.forms()]):
            old = self._forms.peek(form.link) or ()
            kept = next((known for known in old if known == form), form)
            forms = (*(known for known in old if known != form), kept)[-_MAX_FORMS:]
            size = sum([known.num_bytes for known in forms])
            self._forms.put(form.link, forms, size=size)
