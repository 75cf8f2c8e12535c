"""Recognise conversations that have no session id, by an exact chain over their messages.

A history is identified by the hash of all its messages up to and including an answer, known only to
those who received it. Two different rewritings under one hash make it ambiguous, and the
conversation starts over. Kept in memory. Knows links and sent messages; does not know HTTP.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.message_chain import Link, next_link
from ragboost.rewriting.sent_history import Conversation, HistoryDelta

Digest = bytes
"""Hash of a history as the engine received it; `UNCHANGED` if nothing of it was rewritten."""

UNCHANGED: Digest = b""
_AMBIGUOUS: Digest = b"ambiguous"
_LINKS_PER_SESSION = 16
_NODE_BYTES = 400  # size of a node beside its message


class HistoryNode(NamedTuple):
    """One rewritten turn.

    Attributes:
        parent: the rewritten turn before it; `UNCHANGED` if it is the first.
        delta: its message and turn.
        is_open: all its documents, and those before it, are part of the client's own messages.
    """

    parent: Digest
    delta: HistoryDelta
    is_open: bool


class ChainMatch(NamedTuple):
    """The recognised part of a request's history.

    Attributes:
        links: of its messages.
        beside: the documents that the request gives beside its messages, as bytes.
        digest: of the recognised history; `UNCHANGED` if there is none.
        conversation: what the engine was sent for it.
    """

    links: Sequence[Link]
    beside: bytes
    digest: Digest
    conversation: Conversation


class Histories:
    """The histories of conversations without a name, bounded by number, bytes and age.

    Args:
        settings: the bounds; `max_sessions` bounds the rewritten turns.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # A turn is always used before those that follow it, so that the last turns of a
        # conversation are evicted first.
        self._nodes: BoundedMap[Digest, HistoryNode] = BoundedMap(
            max_entries=settings.max_sessions,
            max_size=settings.max_bytes,
            ttl_s=settings.ttl_s,
            clock=clock,
        )
        self._links: BoundedMap[Link, Digest] = BoundedMap(
            max_entries=settings.max_sessions * _LINKS_PER_SESSION
        )

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_bytes(self) -> int:
        """Size of the rewritten messages."""
        return self._nodes.size

    def match(self, links: Sequence[Link], beside: bytes = b"") -> ChainMatch:
        """Find what was sent for the longest known prefix of a history.

        Args:
            links: of the request's messages.
            beside: the documents that the request gives beside its messages, as bytes.
        """
        self._nodes.expire()
        digest, turns = self._longest(links)
        if links and (beside or digest != UNCHANGED):  # the same question again, such as a retry
            again = self._links.peek(_beside_link(digest, links[-1], beside))
            if again is not None and (known := self._turns(again)) is not None:
                digest, turns = again, known
        return ChainMatch(links, beside, digest, Conversation(deltas=turns))

    def add(self, match: ChainMatch, delta: HistoryDelta, *, is_final: bool = True) -> Digest:
        """Keep what a request's messages became, and return the digest of its history with them.

        Documents inside the messages prove by their bytes whose history it is, so that it is known
        at once. Documents beside them need the answer: see `add_answers`.

        Args:
            match: of the request.
            delta: what it added.
            is_final: the same request is to be sent the same way again.
        """
        if not delta.sent:
            return match.digest
        digest = _digest(match.digest, delta)
        parent = self._nodes.peek(match.digest)
        is_open = not match.beside and (
            match.digest == UNCHANGED or (parent is not None and parent.is_open)
        )
        if digest not in self._nodes:
            size = _NODE_BYTES + sum(len(sent.message) for _, sent in delta.sent)
            self._nodes.put(digest, HistoryNode(match.digest, delta, is_open), size=size)
        self._touch(digest)
        link = match.links[-1]
        if is_open:
            self._links.put(link, digest)
        elif is_final:
            self._links.put(_beside_link(match.digest, link, match.beside), digest)
        return digest

    def add_answers(self, link: Link, digest: Digest, answers: Sequence[Mapping[str, Any]]) -> None:
        """Let a history be continued by an answer, or by each of several to choose from.

        Called for every answer, of requests without documents too: an equal history with other
        documents, or with none, makes its link ambiguous.

        Args:
            link: of the request's messages.
            digest: returned by `add`.
            answers: the assistant's messages.
        """
        for answer in answers:
            continued = next_link(link, answer)
            known = self._links.peek(continued)
            is_unique = known is None or known == digest
            self._links.put(continued, digest if is_unique else _AMBIGUOUS)

    def _longest(self, links: Sequence[Link]) -> tuple[Digest, Sequence[HistoryDelta]]:
        for link in reversed(links):
            digest = self._links.peek(link)
            if digest is None or digest == _AMBIGUOUS:
                continue
            self._links.touch(link)
            turns = self._turns(digest)
            if turns is not None:
                return digest, turns
        return UNCHANGED, ()

    def _turns(self, digest: Digest) -> Sequence[HistoryDelta] | None:
        """Return the rewritten turns up to `digest`; None if one of them was evicted."""
        nodes = list(self._chain(digest))
        if (nodes[-1].parent if nodes else digest) != UNCHANGED:
            return None
        self._touch(digest)
        return [node.delta for node in reversed(nodes)]

    def _chain(self, digest: Digest) -> Iterator[HistoryNode]:
        """Yield the turns from the last to the first, as far as they are known."""
        while node := self._nodes.peek(digest):
            yield node
            digest = node.parent

    def _touch(self, digest: Digest) -> None:
        while node := self._nodes.peek(digest):
            self._nodes.touch(digest)
            digest = node.parent


def _beside_link(digest: Digest, link: Link, beside: bytes) -> Link:
    hashed = hashlib.sha256(b"beside %d " % len(digest))
    hashed.update(digest + link)
    hashed.update(beside)
    return hashed.digest()


def _digest(parent: Digest, delta: HistoryDelta) -> Digest:
    """Hash a rewritten history.

    The bytes of its last message follow from the original history, the earlier turns as rewritten,
    and the documents given and sent: hashing these costs much less.
    """
    hashed = hashlib.sha256(parent)
    for link, sent in delta.sent:
        keys = ",".join((*sent.retrieved, "", *sent.documents))
        # Links are hashes and so of one length.
        hashed.update(b"%b%d,%b" % (link, len(sent.message), keys.encode()))
    return hashed.digest()
