"""The rewritten messages of conversations, kept to be sent again byte for byte.

A chat client resends its history in its original form. Each message that was rewritten is found by
the link of the original history up to and including it: an edited, truncated or foreign history
finds none, and the conversation starts over. Does not know texts of documents or HTTP.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from msgspec import Raw

from ragboost.booster import SessionState, Turn
from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import JsonBody
from ragboost.rewriting.message_chain import Link, chain_links


class SentMessage(NamedTuple):
    """A rewritten message.

    Attributes:
        message: its bytes as the engine received them.
        retrieved: keys of the documents that the client gave with it, in relevance order.
        documents: keys of the documents that it carries in full, in prompt order.
        is_boosted: they were boosted; else they are in the order given, without hints.
        labels: of `documents`, as the message shows them; empty if it shows none.
    """

    message: bytes
    retrieved: tuple[str, ...]
    documents: tuple[str, ...]
    is_boosted: bool = True
    labels: tuple[str, ...] = ()

    @property
    def referred(self) -> set[str]:
        """Keys of the documents that it refers to, which earlier messages must carry."""
        return set(self.retrieved).difference(self.documents)


class HistoryDelta(NamedTuple):
    """The addition of one request to a conversation: its rewritten message and turn, if any."""

    sent: tuple[tuple[Link, SentMessage], ...] = ()
    turn: Turn | None = None


class Conversation:
    """One conversation of one user with one model.

    Args:
        key: its name over all users and models; empty if it has none.
        deltas: what its requests added, oldest first.

    Attributes:
        key: the name.
        sent: rewritten messages by link.
        num_bytes: size of these messages.
        state: the Booster's record of its turns.
    """

    def __init__(self, key: str = "", deltas: Iterable[HistoryDelta] = ()) -> None:
        self.key = key
        self.sent: dict[Link, SentMessage] = {}
        self.num_bytes = 0
        self.state = SessionState(key or "unnamed")
        for delta in deltas:
            self.remember(delta.sent)
            if delta.turn is not None:
                self.state.turns.append(delta.turn)
                self.state.next_turn = delta.turn.number + 1

    def remember(self, sent: Iterable[tuple[Link, SentMessage]]) -> None:
        """Keep rewritten messages. `Booster.boost` adds the turn to `state` itself."""
        for link, message in sent:
            old = self.sent.pop(link, None)
            self.num_bytes += len(message.message) - (len(old.message) if old else 0)
            self.sent[link] = message

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest messages until the rest fits; their turns will start over."""
        while self.num_bytes > max_bytes and self.sent:
            oldest = next(iter(self.sent))
            self.num_bytes -= len(self.sent.pop(oldest).message)


class Conversations:
    """The named conversations, bounded by number, bytes and age.

    Args:
        settings: the bounds.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_bytes = settings.max_bytes
        self._by_key: BoundedMap[str, Conversation] = BoundedMap(
            max_entries=settings.max_sessions,
            max_size=settings.max_bytes,
            ttl_s=settings.ttl_s,
            clock=clock,
        )

    def __len__(self) -> int:
        return len(self._by_key)

    @property
    def num_bytes(self) -> int:
        """Size of all rewritten messages."""
        return self._by_key.size

    def get(self, key: str) -> Conversation:
        """Return the conversation of this name; an unknown one is new, and kept by `add`."""
        return self._by_key.get(key) or Conversation(key)

    def add(self, conversation: Conversation, delta: HistoryDelta) -> None:
        """Keep a conversation with what a request added to it, if anything."""
        if delta.sent or delta.turn is not None:
            conversation.remember(delta.sent)
            conversation.shrink(self._max_bytes)
            self._by_key.put(conversation.key, conversation, size=conversation.num_bytes)


class ResentMessages(NamedTuple):
    """The rewritten messages that belong into a resent history.

    Attributes:
        sent: by index of the message, all before the question.
        carried: labels of the documents that they carry, by key; empty labels are not shown.
        links: of all messages; empty without a conversation.
        repeated: what the question's message was rewritten to in an earlier request, or None.
    """

    sent: Mapping[int, SentMessage] = {}
    carried: Mapping[str, str] = {}
    links: Sequence[Link] = ()
    repeated: SentMessage | None = None

    @classmethod
    def find(
        cls,
        body: JsonBody,
        conversation: Conversation | None,
        *,
        question: int | None = None,
        seed: bytes = b"",
    ) -> Self:
        """Find the rewritten messages of a request's history.

        Args:
            body: of the request.
            conversation: None if it belongs to none.
            question: index of the question's message; None: all messages are history.
            seed: identifies what precedes the messages and belongs to their history.
        """
        if conversation is None:
            return cls()
        links = chain_links(body.message_digests, seed=seed)
        sent: dict[int, SentMessage] = {}
        carried: dict[str, str] = {}
        for at, link in enumerate(links[:question]):
            old = conversation.sent.get(link)
            # Drop a message whose referents were evicted: its turn starts over, too.
            if old is not None and old.referred <= carried.keys():
                sent[at] = old
                carried.update(zip_longest(old.documents, old.labels, fillvalue=""))
        repeated = None if question is None else conversation.sent.get(links[question])
        if repeated is not None and not repeated.referred <= carried.keys():
            repeated = None
        return cls(sent, carried, links, repeated)

    def num_bytes(self, body: JsonBody, end: int | None = None) -> int:
        """Return the bytes of the messages before `end` as they are sent; None: of all."""
        return sum(
            len(self.sent[at].message) if at in self.sent else memoryview(message).nbytes
            for at, message in enumerate(body.messages[:end])
        )


def with_messages(fields: Mapping[str, Any], sent: Mapping[int, SentMessage]) -> dict[str, Any]:
    """Return the fields with these messages, by index, as they were sent before."""
    if not sent:
        return dict(fields)
    messages = list(fields["messages"])
    for at, old in sent.items():
        messages[at] = Raw(old.message)
    return {**fields, "messages": messages}
