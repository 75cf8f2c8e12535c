"""Recognise conversations that have no session id, by messages and documents that they repeat.

A rewritten message is sent again only in a request that contains the original and all documents of
the rewritten one: no prompt gets a text of others, whoever has the same questions and key.
"""

import hashlib
import time
from collections.abc import Callable, Iterator

from msgspec import Raw

from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import Link, chain_links
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.sent_history import UNCHANGED, Conversation, Digest, HistoryDelta

_MAX_REWRITINGS = 64  # of one message: users who begin with the same question
_MAX_OPENING_BYTES = 512  # of first messages that several conversations may have
_NODE_BYTES = 400  # size of a node beside its message


class Histories:
    """The histories of conversations without a name, bounded by number, bytes and age.

    Args:
        settings: `max_sessions` bounds the rewritten messages.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # A turn is always used before those that follow it, so that the last turns of a
        # conversation are evicted first.
        self._nodes: BoundedMap[Digest, HistoryDelta] = BoundedMap(
            max_entries=settings.max_sessions,
            max_size=settings.max_bytes,
            ttl_s=settings.ttl_s,
            clock=clock,
        )
        # The rewritings of one original message, oldest first; some may have been evicted.
        self._rewritings: BoundedMap[Link, tuple[Digest, ...]] = BoundedMap(
            max_entries=settings.max_sessions
        )
        # Digests of the messages that were rewritten, whatever precedes them.
        self._messages: BoundedMap[Digest, None] = BoundedMap(max_entries=settings.max_sessions)
        # Messages that were sent as they came, all before them, too; True: since they were last
        # rewritten. The first of them had been rewritten before.
        self._unchanged: BoundedMap[Link, bool] = BoundedMap(
            max_entries=settings.max_sessions, ttl_s=settings.ttl_s, clock=clock
        )

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_bytes(self) -> int:
        """Size of the rewritten messages."""
        return self._nodes.size

    def keeps(self, link: Link) -> bool:
        """Return True if a message was rewritten, and what it became is kept."""
        return any(digest in self._nodes for digest in self._rewritings.peek(link) or ())

    def match(self, request: ParsedRequest) -> Conversation:
        """Return what was sent for a request's history, as far as the request contains all of it.

        The last known message decides: one that was sent as it came since, else a rewriting with
        whose documents the request's begin, or else end, else the newest. `Conversation.digest`
        names what is recognised.
        """
        self._nodes.expire()
        self._unchanged.expire()
        reached: set[Digest | None] = {UNCHANGED}
        best, rank = UNCHANGED, (-1, 0)
        documents = frozenset(request.keys_beside)
        for at, link in enumerate(request.links):
            is_last = at == len(request.links) - 1
            for digest in self._rewritings.peek(link) or ():
                node = self._nodes.peek(digest)
                if node is None or node.parent not in reached:
                    continue
                if _contains(request, documents, node, is_last=is_last):
                    reached.add(digest)
                    if (new := (at, _likeness(request, node))) >= rank:
                        best, rank = digest, new
            if not is_last and self._unchanged.peek(link):
                best, rank = UNCHANGED, (at, 2)
        # All are of one branch, so that these need not know theirs.
        deltas = [node._replace(parent=None) for node in self._chain(best)]
        self._touch(best)
        return Conversation(deltas=reversed(deltas), digest=best)

    def add_unchanged(self, request: ParsedRequest) -> None:
        """Note that a message without documents was sent as it came, if the first message of its
        conversation was, and was rewritten before; all are hashed only if its own bytes were."""
        at = request.opening if self._messages else None
        if at is None or not self._is_rewritten(request.body.messages[at]):
            return
        links = chain_links(request.body.message_digests, seed=request.scope)
        first, last = links[at], links[-1]
        if first == last and first in self._rewritings:
            self._unchanged.put(first, True)
        elif first in self._unchanged:
            self._unchanged.touch(first)
            self._unchanged.put(last, True)

    def _is_rewritten(self, message: Raw) -> bool:
        view = memoryview(message)
        return view.nbytes <= _MAX_OPENING_BYTES and hashlib.sha256(view).digest() in self._messages

    def add(
        self, request: ParsedRequest, conversation: Conversation, delta: HistoryDelta
    ) -> Digest:
        """Keep what a request's message became, and return the digest of its history with it.

        Args:
            conversation: the match of the request.
        """
        if not delta.sent:
            return conversation.digest
        parent, link = conversation.digest, request.links[-1]
        again = self._nodes.peek(parent)
        if again is not None and again.link == link:
            parent = again.parent or UNCHANGED  # the same message once more
        node = delta._replace(parent=parent, link=link, shape=request.shape_beside)
        digest = _digest(node)
        if digest not in self._nodes:
            size = _NODE_BYTES + sum(len(sent.message) for _, sent in delta.sent)
            self._nodes.put(digest, node, size=size)
        rewritings = self._rewritings.peek(link) or ()
        others = [other for other in rewritings if other in self._nodes and other != digest]
        self._rewritings.put(link, (*others, digest)[-_MAX_REWRITINGS:])
        self._messages.put(request.body.message_digests[len(request.links) - 1], None)
        if link in self._unchanged:
            self._unchanged.put(link, False)
        self._touch(digest)
        return digest

    def _chain(self, digest: Digest) -> Iterator[HistoryDelta]:
        while node := self._nodes.peek(digest):
            yield node
            digest = node.parent or UNCHANGED

    def _touch(self, digest: Digest) -> None:
        while node := self._nodes.peek(digest):
            self._nodes.touch(digest)
            if node.link in self._rewritings:
                self._rewritings.touch(node.link)
            digest = node.parent or UNCHANGED


def _contains(
    request: ParsedRequest, documents: frozenset[str], node: HistoryDelta, *, is_last: bool
) -> bool:
    """Return True if a request contains all documents of a rewritten message.

    Documents inside messages do: the link is a hash of their bytes. The last message must come
    with the same documents and option: it is the same question again.
    """
    if not node.shape:
        return True
    if node.shape != request.shape_beside:
        return False  # the same document in two shapes would be sent twice
    for _, sent in node.sent:
        if is_last and not sent.fits(request.keys_beside, is_boosted=request.is_boost_wanted):
            return False
        if not documents.issuperset(sent.retrieved):
            return False
    return True


def _likeness(request: ParsedRequest, node: HistoryDelta) -> int:
    """Return 2 if a client that adds to the end of its list of documents and keeps its option sends
    this request in a later turn, 1 if one that adds to the front does, else 0."""
    if not node.shape:
        return 2
    sent, keys = node.sent[0][1], request.keys_beside
    num = len(sent.retrieved)
    if sent.is_boosted != request.is_boost_wanted:
        return 0
    return 2 if keys[:num] == sent.retrieved else int(keys[len(keys) - num :] == sent.retrieved)


def _digest(node: HistoryDelta) -> Digest:
    """Hash a rewritten history.

    The bytes of its last message follow from the original history, the earlier turns as rewritten,
    and the documents given and sent: hashing these costs much less.
    """
    parent = node.parent or UNCHANGED
    hashed = hashlib.sha256(b"%d " % len(parent) + parent + node.link)
    hashed.update(b"%b " % node.shape.encode())
    for _, sent in node.sent:
        keys = ",".join((*sent.retrieved, "", *sent.documents))
        hashed.update(b"%d,%d,%b" % (len(sent.message), sent.is_boosted, keys.encode()))
    return hashed.digest()
