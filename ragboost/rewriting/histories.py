"""Recognise conversations whose requests carry no session id, by an exact chain over the messages.

A history is known by the hash of all its messages up to and including an answer, which only those
have who got it. Two different rewritings under one hash make it ambiguous, and the conversation
starts over. Kept in memory only. Knows hashes and sent messages, does not know HTTP.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ragboost.rewriting.conversations import HistoryDelta, Link, SentHistory

Digest = bytes
"""Hash of what the engine was sent for a history; empty: nothing was rewritten."""

PLAIN: Digest = b""
_LINKS_PER_SESSION = 16
_NODE_BYTES = 400  # what a node takes beside its message


class HistoryNode(NamedTuple):
    """One rewritten turn.

    Attributes:
        parent: the rewritten turn before it; `PLAIN` if it is the first.
        learned: its message and turn.
        num_bytes: its size.
        is_open: all its documents, and those before it, stand in the client's own messages.
    """

    parent: Digest
    learned: HistoryDelta
    num_bytes: int
    is_open: bool


class ChainMatch(NamedTuple):
    """What was recognised of a request's history.

    Attributes:
        links: hash of every prefix of its messages.
        digest: of the rewritten history; `PLAIN` if none was recognised.
        past: what the engine was sent for it.
    """

    links: Sequence[Link]
    digest: Digest
    past: SentHistory


class Histories:
    """The histories that are remembered, the least recently used and the expired dropped.

    Args:
        max_sessions: rewritten turns kept.
        max_bytes: bytes of rewritten messages kept.
        ttl_s: seconds after the last use until a turn expires.
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
        self._max_nodes = max_sessions
        self._max_links = max_sessions * _LINKS_PER_SESSION
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        # Both by last use, oldest first. A turn is always used before those that follow it, so
        # that the last turns of a conversation go first. None marks an ambiguous link.
        self._nodes: OrderedDict[Digest, tuple[float, HistoryNode]] = OrderedDict()
        self._links: OrderedDict[Link, Digest | None] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, links: Sequence[Link], *, apart: bytes = b"") -> ChainMatch:
        """Find what was sent for the longest known prefix of a history.

        Args:
            links: of the request's messages.
            apart: documents that the request gives beside its messages, as bytes.
        """
        self._expire()
        digest, past = self._longest(links)
        if links and (apart or digest != PLAIN):  # the same question again, such as a retry
            again = self._links.get(_apart_link(digest, links[-1], apart))
            found = self._past(again) if again else None
            if again and found is not None:
                digest, past = again, found
        return ChainMatch(links, digest, past)

    def add(
        self, match: ChainMatch, learned: HistoryDelta, *, apart: bytes = b"", is_final: bool = True
    ) -> Digest:
        """Keep what a request's messages became; the digest of its history with them.

        Documents that stand in the messages themselves prove by their bytes whose history it is, so
        that it is known at once. Documents given apart need the answer: see `answered`.
        """
        if not learned.sent:
            return match.digest
        digest = _digest(match.digest, learned)
        parent = self._nodes.get(match.digest)
        is_open = not apart and (
            match.digest == PLAIN or (parent is not None and parent[1].is_open)
        )
        if digest not in self._nodes:
            size = _NODE_BYTES + sum(len(sent.message) for _, sent in learned.sent)
            self.num_bytes += size
            self._nodes[digest] = (self._clock(), HistoryNode(match.digest, learned, size, is_open))
        self._touch(digest)
        link = match.links[-1]
        if is_open:
            self._set(link, digest)
        elif is_final:
            self._set(_apart_link(match.digest, link, apart), digest)
        self._shrink()
        return digest

    def answered(self, match: ChainMatch, answers: Sequence[Mapping[str, Any]]) -> None:
        """The history, whose digest is now that of `add`, has got an answer, or several to choose.

        Called for every answer, of requests without documents too: an equal history with other
        documents, or with none, makes its link ambiguous.
        """
        for answer in answers:
            link = _next_link(match.links[-1], _canonical(answer))
            known = self._links.get(link, match.digest)
            self._set(link, match.digest if known == match.digest else None)

    def _longest(self, links: Sequence[Link]) -> tuple[Digest, SentHistory]:
        for link in reversed(links):
            digest = self._links.get(link)
            if digest is None:
                continue
            self._links.move_to_end(link)
            past = self._past(digest)
            if past is not None:
                return digest, past
        return PLAIN, SentHistory()

    def _past(self, digest: Digest) -> SentHistory | None:
        """All rewritten turns up to `digest`; None if one of them was dropped."""
        nodes = list(self._chain(digest))
        if nodes and nodes[-1].parent != PLAIN:
            return None
        if not nodes and digest != PLAIN:
            return None
        self._touch(digest)
        nodes.reverse()
        sent = {link: sent for node in nodes for link, sent in node.learned.sent}
        return SentHistory(sent, tuple(node.learned.turn for node in nodes if node.learned.turn))

    def _chain(self, digest: Digest) -> Iterator[HistoryNode]:
        """The turns from the last to the first, as far as they are known."""
        while digest != PLAIN and (entry := self._nodes.get(digest)):
            yield entry[1]
            digest = entry[1].parent

    def _touch(self, digest: Digest) -> None:
        now = self._clock()
        while entry := self._nodes.get(digest):
            self._nodes[digest] = (now, entry[1])
            self._nodes.move_to_end(digest)
            digest = entry[1].parent

    def _set(self, link: Link, digest: Digest | None) -> None:
        self._links[link] = digest
        self._links.move_to_end(link)
        while len(self._links) > self._max_links:
            self._links.popitem(last=False)

    def _shrink(self) -> None:
        while len(self._nodes) > self._max_nodes or self.num_bytes > self._max_bytes:
            self._drop_oldest()

    def _expire(self) -> None:
        limit = self._clock() - self._ttl_s
        while self._nodes and next(iter(self._nodes.values()))[0] < limit:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (_, node) = self._nodes.popitem(last=False)
        self.num_bytes -= node.num_bytes


def history_links(messages: Sequence[Any], digests: Sequence[bytes], *, scope: bytes) -> list[Link]:
    """Hash every prefix of a history.

    An answer counts by what clients keep of it, its text and its tool calls' ids; every other
    message by its bytes.

    Args:
        messages: decoded.
        digests: hash of the client's bytes of each.
        scope: model, cache salt, credentials: nothing is shared between two scopes.
    """
    link = hashlib.sha256(scope).digest()
    links = []
    for message, data in zip(messages, digests, strict=True):
        is_answer = isinstance(message, dict) and message.get("role") == "assistant"
        link = _next_link(link, _canonical(message) if is_answer else data)
        links.append(link)
    return links


def _next_link(link: Link, message: bytes) -> Link:
    return hashlib.sha256(link + message).digest()


def _canonical(answer: Mapping[str, Any]) -> bytes:
    content = answer.get("content")
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict)]
        content = "".join(text for text in texts if isinstance(text, str))
    text = content.strip() if isinstance(content, str) else ""
    calls = answer.get("tool_calls")
    ids = [
        call.get("id") if isinstance(call, dict) else None
        for call in (calls if isinstance(calls, list) else ())
    ]
    return repr(("answer", text, ids)).encode()


def _apart_link(digest: Digest, link: Link, apart: bytes) -> Link:
    hashed = hashlib.sha256(b"apart %d " % len(digest))
    hashed.update(digest + link)
    hashed.update(apart)
    return hashed.digest()


def _digest(parent: Digest, learned: HistoryDelta) -> Digest:
    """Hash what a history became. Its last message follows from the original history, from what
    became of the earlier turns, and from the documents given and sent: hashing these is much less
    than hashing its bytes."""
    hashed = hashlib.sha256(parent)
    for link, sent in learned.sent:
        keys = ",".join((*sent.retrieved, "", *sent.documents))
        # Links are hashes and so of one length.
        hashed.update(b"%b%d,%b" % (link, len(sent.message), keys.encode()))
    return hashed.digest()
