"""Recognise conversations that have no session id, by messages and documents that they repeat.

What was sent for a list of messages is sent again for the longest such list that a request begins
with, if the request contains all documents of it: no prompt gets a text of others, whoever has the
same questions and key.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Raw

from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import Link, chain_links
from ragboost.rewriting.parsed_request import ParsedRequest
from ragboost.rewriting.sent_history import UNCHANGED, Conversation, Digest, HistoryDelta

_MAX_ENDS = 64  # of one list of messages: users who begin with the same question
_MAX_OPENING_BYTES = 512  # of a first message, to tell whether its conversation may be known
_NODE_BYTES = 400  # size of a node beside its message


class Histories:
    """The histories of conversations without a name, bounded by number, bytes and age.

    messages       |  q1  |  a1  |  q2  |  call  | result |
    nodes          |  q1' <------|- q2' |        |        |   a rewritten message, and its parent
    ends, by link  |  q1' |      |  q2' |        |   q2'  |   what was sent for the list up to here

    Args:
        settings: `max_sessions` bounds the rewritten messages.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # One rewritten message each. It is always used before those that follow it, so that the
        # last turns of a conversation are evicted first.
        self._nodes: BoundedMap[Digest, HistoryDelta] = BoundedMap(
            max_entries=settings.max_sessions,
            max_size=settings.max_bytes,
            ttl_s=settings.ttl_s,
            clock=clock,
        )
        # What was sent for a list of messages, the newest last, by its link: the last node, or
        # `UNCHANGED`. Some nodes may be evicted. Lists end where a request or a node does, or a
        # message with documents that was sent as it came: one that ends with a response would be
        # found for all who got the same.
        num_ends = 2 * settings.max_sessions
        self._ends: BoundedMap[Link, tuple[Digest, ...]] = BoundedMap(
            max_entries=num_ends, max_size=num_ends, ttl_s=settings.ttl_s, clock=clock
        )
        # Hashes of the first messages of conversations with nodes.
        self._openings: BoundedMap[int, None] = BoundedMap(max_entries=settings.max_sessions)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def num_bytes(self) -> int:
        """Size of the rewritten messages."""
        return self._nodes.size

    def match(self, request: ParsedRequest) -> Conversation:
        """Return what was sent for a request's history, as far as the request contains all of it.

        `Conversation.digest` names what is recognised.
        """
        self._nodes.expire()
        self._ends.expire()
        documents = frozenset(request.keys_beside)
        judged = {UNCHANGED: True}
        links, digest, num = request.links, UNCHANGED, 0
        cut: tuple[int, Digest] | None = None
        for at in range(len(links) - 1, -1, -1):
            if not (ends := self._ends.peek(links[at])):
                continue
            is_last = links[at] == request.question_link
            end = self._likeliest(request, ends, documents, judged, is_last=is_last)
            if end is not None:
                digest, num = end, at + 1
                break
            cut = cut or (None if is_last else self._cut(request, documents, ends[-1]))
        if cut is not None and cut[0] > num:
            num, digest = cut
        # All are of one branch.
        deltas = [node._replace(parent=None) for _, node in self._chain(digest)]
        self._touch(digest)
        return Conversation(deltas=reversed(deltas), digest=digest, num_known=num)

    def _likeliest(
        self,
        request: ParsedRequest,
        ends: Sequence[Digest],
        documents: frozenset[str],
        judged: dict[Digest, bool],
        *,
        is_last: bool,
    ) -> Digest | None:
        """Choose what was sent for a list of messages to the client that sends it now.

        The same question with the same documents counts most; then a rewriting with whose documents
        the request's begin; then what was sent without any, if that is the newest, or one with
        whose documents they end, or whose messages contain them; then the newest.

        Args:
            is_last: the list ends with the question. Asked with other documents, or none, it is
                another one's.
        """
        best, rank = None, -2
        for digest in reversed(ends):
            node = self._nodes.peek(digest)
            is_asked = bool(node and node.shape and node.link == request.question_link)
            if (is_last and not is_asked) or not self._holds(request, documents, digest, judged):
                continue
            if node is None:
                new = 1 if best is None else -1
            else:
                new = 3 if is_asked else _likeness(request, node)
            if new > rank:
                best, rank = digest, new
        return best

    def _cut(
        self, request: ParsedRequest, documents: frozenset[str], digest: Digest
    ) -> tuple[int, Digest] | None:
        """Return the index of the first message in a history whose documents a request has not, and
        what was sent before it; None if there is none, or not all is kept."""
        first, begin = None, UNCHANGED
        for _, node in self._chain(digest):
            digest = node.parent or UNCHANGED
            if not _contains(request, documents, node):
                first, begin = node, digest
        if first is None or digest != UNCHANGED:
            return None
        return request.links.index(first.link), begin

    def _holds(
        self,
        request: ParsedRequest,
        documents: frozenset[str],
        digest: Digest,
        judged: dict[Digest, bool],
    ) -> bool:
        """Return True if a request contains the documents of a node and of all before it, which are
        all kept; what was found out is in `judged`."""
        chain: list[Digest] = []
        while digest not in judged:
            chain.append(digest)
            node = self._nodes.peek(digest)
            if node is None or not _contains(request, documents, node):
                judged[digest] = False
                break
            digest = node.parent or UNCHANGED
        is_held = judged[digest]
        for each in chain:
            judged[each] = is_held
        return is_held

    def add_unchanged(self, request: ParsedRequest) -> None:
        """Note that messages without documents were sent as they came, if the first one began a
        conversation that was rewritten; all are hashed only then."""
        at = request.opening if self._openings else None
        if at is not None and _opening(request.body.messages[at]) in self._openings:
            self._add_end(chain_links(request.body.message_digests, seed=request.scope)[-1])

    def add(
        self, request: ParsedRequest, conversation: Conversation, delta: HistoryDelta
    ) -> Digest:
        """Keep what a request's messages became, and return the digest of its history with them.

        Args:
            conversation: the match of the request.
        """
        digest = conversation.digest
        for link, sent in delta.sent:
            forms = conversation.forms.get(link)
            if forms and forms[-1].sent == sent:
                continue
            node = HistoryDelta(
                ((link, sent),),
                delta.turn,
                parent=digest,
                link=request.question_link or link,
                shape=request.shape_beside,
            )
            digest = _digest(node)
            if digest not in self._nodes:
                self._nodes.put(digest, node, size=_NODE_BYTES + len(sent.message))
            self._add_end(node.link, digest)
        self._add_end(request.links[-1], digest)
        if not delta.sent and not request.question_link:
            self._add_ends_of_documents(request, digest, begin=conversation.num_known)
        if digest != UNCHANGED:
            self._touch(digest)
            if (at := request.opening) is not None:
                self._openings.put(_opening(request.body.messages[at]), None)
        return digest

    def _add_ends_of_documents(self, request: ParsedRequest, digest: Digest, *, begin: int) -> None:
        """Note that messages with documents were sent as they came, so that this is known of a
        history that is cut behind one of them, too."""
        messages = request.body.fields[request.body.list_name]
        for at in range(begin, len(request.links) - 1):
            message = messages[at]
            if isinstance(message, dict) and message.get("role") != "assistant":
                self._add_end(request.links[at], digest)

    def _add_end(self, link: Link, digest: Digest = UNCHANGED) -> None:
        old = self._ends.peek(link) or ()
        if not old or old[-1] != digest:
            kept = [end for end in old if end != digest and (not end or end in self._nodes)]
            old = (*kept, digest)[-_MAX_ENDS:]
        self._ends.put(link, old, size=len(old))

    def _chain(self, digest: Digest) -> Iterator[tuple[Digest, HistoryDelta]]:
        """Yield a node and those before it that are kept, the last one first."""
        while (node := self._nodes.peek(digest)) is not None:
            yield digest, node
            digest = node.parent or UNCHANGED

    def _touch(self, digest: Digest) -> None:
        for each, node in self._chain(digest):
            self._nodes.touch(each)
            if node.link in self._ends:
                self._ends.touch(node.link)


def _opening(message: Raw) -> int:
    view = memoryview(message)
    return hash((view.nbytes, bytes(view[:_MAX_OPENING_BYTES])))


def _contains(request: ParsedRequest, documents: frozenset[str], node: HistoryDelta) -> bool:
    """Return True if a request contains all documents of a rewritten message.

    Documents inside messages do: the link is a hash of their bytes. The same document in two shapes
    would be sent twice. The question must come with the same documents and option.
    """
    if not node.shape:
        return True
    sent = node.sent[0][1]
    if node.shape != request.shape_beside:
        return False
    if node.link == request.question_link:
        return sent.fits(request.keys_beside, is_boosted=request.is_boost_wanted)
    return documents.issuperset(sent.retrieved)


def _likeness(request: ParsedRequest, node: HistoryDelta) -> int:
    """Return 2 if a client that adds to the end of its list of documents and keeps its option sends
    this request in a later turn, 1 if one that adds to the front does, or may do, else 0."""
    if not node.shape:
        return 1
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
