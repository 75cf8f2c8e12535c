"""What the engine was sent for each message of a conversation, so that it is sent again unchanged.

A client resends its history in its original form. Each message that we rewrote is found by a hash
over the original history up to and including it: an edited, truncated or foreign history finds
nothing, and the conversation starts over. Does not know documents' texts or HTTP.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from ragboost.booster import SessionState, Turn

Link = bytes
"""Hash of an original history; the next message's link is made from it."""


def chain(messages: Sequence[bytes], *, seed: bytes = b"") -> list[Link]:
    """Hash every prefix of a list of messages, given as the hashes of their bytes."""
    links: list[Link] = []
    link = hashlib.sha256(seed).digest()
    for message in messages:
        digest = hashlib.sha256(link)
        digest.update(message)
        link = digest.digest()
        links.append(link)
    return links


class SentMessage(NamedTuple):
    """A rewritten message.

    Attributes:
        message: its bytes as the engine got them.
        retrieved: keys of the documents that were given with it, in relevance order.
        documents: keys of the documents that the request carried in full, in prompt order.
    """

    message: bytes
    retrieved: tuple[str, ...]
    documents: tuple[str, ...]

    @property
    def referred(self) -> set[str]:
        """Keys of the documents that it refers to: they must stand before it in the payload."""
        return set(self.retrieved).difference(self.documents)


class SentHistory(NamedTuple):
    """What the engine was sent for one history.

    Attributes:
        sent: rewritten messages by link.
        turns: what the Booster knows of these messages, oldest first.
    """

    sent: Mapping[Link, SentMessage] = {}
    turns: tuple[Turn, ...] = ()


class HistoryDelta(NamedTuple):
    """What one request adds to a `SentHistory`: its rewritten message and its turn, if any."""

    sent: tuple[tuple[Link, SentMessage], ...] = ()
    turn: Turn | None = None


@dataclass(slots=True)
class Conversation:
    """One conversation of one user with one model.

    Attributes:
        key: its name, unique over all users.
        sent: rewritten messages by link.
        num_bytes: size of these messages.
        state: what the Booster knows of its turns; None: the Booster keeps that itself.
    """

    key: str
    sent: dict[Link, SentMessage] = field(default_factory=dict)
    num_bytes: int = 0
    state: SessionState | None = None

    @classmethod
    def after(cls, past: SentHistory) -> Self:
        """A conversation for one request, which `learned` tells apart from its past."""
        last = past.turns[-1].number if past.turns else 0
        state = SessionState("past", turns=list(past.turns), next_turn=last + 1)
        return cls("", dict(past.sent), state=state)

    def learned(self, past: SentHistory) -> HistoryDelta:
        """What the request added."""
        sent = tuple(item for item in self.sent.items() if past.sent.get(item[0]) is not item[1])
        turns = self.state.turns if self.state else []
        known = past.turns[-1].number if past.turns else 0
        return HistoryDelta(sent, turns[-1] if turns and turns[-1].number > known else None)

    def remember(self, link: Link, sent: SentMessage) -> None:
        """Keep what a message was rewritten to."""
        old = self.sent.pop(link, None)
        self.num_bytes += len(sent.message) - (len(old.message) if old else 0)
        self.sent[link] = sent

    def shrink(self, max_bytes: int) -> None:
        """Forget the oldest messages until the rest fits; their turns will start over."""
        while self.num_bytes > max_bytes and self.sent:
            oldest = next(iter(self.sent))
            self.num_bytes -= len(self.sent.pop(oldest).message)


class Conversations:
    """The conversations that are remembered, the least recently used and the expired dropped.

    Args:
        max_sessions: conversations kept.
        max_bytes: bytes of rewritten messages kept, over all of them.
        ttl_s: seconds after the last use until one expires.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        *,
        max_sessions: int,
        max_bytes: int,
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # By last use, oldest first: when it was used, its size then, and the conversation.
        self._entries: OrderedDict[str, tuple[float, int, Conversation]] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> Conversation:
        """The conversation of this name, new if it is unknown; it is kept after `put`."""
        self._expire()
        entry = self._entries.get(key)
        return entry[2] if entry else Conversation(key)

    def put(self, conversation: Conversation) -> None:
        """Keep a conversation as just used; drop others for it if need be."""
        old = self._entries.pop(conversation.key, None)
        self.num_bytes -= old[1] if old else 0
        conversation.shrink(self._max_bytes)
        size = conversation.num_bytes
        self._entries[conversation.key] = (self._clock(), size, conversation)
        self.num_bytes += size
        while len(self._entries) > self._max_sessions or self.num_bytes > self._max_bytes:
            self._drop_oldest()

    def _expire(self) -> None:
        limit = self._clock() - self._ttl_s
        while self._entries and next(iter(self._entries.values()))[0] < limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, size, _) = self._entries.popitem(last=False)
        self.num_bytes -= size
