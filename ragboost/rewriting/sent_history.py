"""The messages of conversations as they were sent, kept to be sent again byte for byte.

A rewritten message is found by the link of the original history up to it: an edited, truncated or
foreign history finds none. Where branches differ, each form knows what it was sent behind.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.booster import SessionState, Turn
from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import JsonBody, Link, chain_links
from ragboost.wires.registry import ANY

Digest = bytes
"""Hash of a history as the engine received it; `UNCHANGED` if nothing of it was rewritten."""

UNCHANGED: Digest = b""
_MAX_FORMS = 8  # of one message: branches of a conversation
FORM_BYTES = 400  # memory of a form beside its message


class SentMessage(NamedTuple):
    message: bytes  # as the engine received it; empty if it is the client's own
    retrieved: tuple[str, ...]  # keys of the documents that the client gave with it, by relevance
    documents: tuple[str, ...]  # keys of those that it carries in full, in prompt order
    is_boosted: bool = True  # else they are in the order given, without hints
    labels: tuple[str, ...] = ()  # of `documents`, as the message shows them; empty if it does not
    is_order_hinted: bool = True  # unless the hint cost too much: see `Context`

    @property
    def referred(self) -> set[str]:
        """Keys of the documents that it refers to, which earlier messages must carry."""
        return set(self.retrieved).difference(self.documents)

    @property
    def adds_documents(self) -> bool:
        """The client gave documents beside the message, which does not contain them by itself."""
        return bool(self.labels or self.referred)

    def fits(self, retrieved: tuple[str, ...] | None, *, is_boosted: bool | None) -> bool:
        """Return True if it was rewritten for these documents; see `ResentMessages`."""
        return self.retrieved == retrieved and is_boosted in (None, self.is_boosted)


AS_IT_CAME = SentMessage(b"", (), (), is_boosted=False)
"""A message that was not rewritten."""


@dataclass(frozen=True)
class MessageForm:
    link: Link  # of the original history up to it
    sent: SentMessage
    parent: Digest | None = None  # of the history that it was sent behind; None: unknown

    @property
    def num_bytes(self) -> int:
        return FORM_BYTES + len(self.sent.message)

    @cached_property
    def digest(self) -> Digest:
        hashed = hashlib.sha256(self.link + (self.parent or UNCHANGED))
        hashed.update(self.sent.message)
        return hashed.digest()


class HistoryDelta(NamedTuple):
    """The addition of one request to a conversation, if any."""

    sent: tuple[tuple[Link, SentMessage], ...] = ()  # each behind the one before it
    turn: Turn | None = None  # the Booster's record of the request
    parent: Digest | None = None  # of the history that the first was sent behind; None: unknown
    # Where it is kept in a conversation without a name: the link of the original history up to it,
    # and the shape of the documents that its request gave beside the messages.
    link: Link = b""
    shape: str = ""


_NOTHING = HistoryDelta()


class Conversation:
    """One conversation of one user with one model.

    Args:
        key: its name over all users and models; empty if it has none.
        deltas: what its requests added, oldest first.
        digest: of its history, if it was recognised by its messages.
        num_known: messages at the beginning of the request that were sent before, in these forms or
            as they came.
    """

    def __init__(
        self,
        key: str = "",
        deltas: Iterable[HistoryDelta] = (),
        *,
        digest: Digest = UNCHANGED,
        num_known: int = 0,
    ) -> None:
        self.key = key
        self.digest = digest
        self.num_known = num_known
        self.forms: dict[Link, list[MessageForm]] = {}  # of each message, newest last
        self.num_bytes = 0  # of all forms
        self.state = SessionState(key or "unnamed")  # the Booster's record of its turns
        for delta in deltas:
            self.remember(delta)
            if delta.turn is not None:
                self.state.turns.append(delta.turn)
                self.state.next_turn = delta.turn.number + 1

    def remember(self, delta: HistoryDelta) -> None:
        """Keep messages as they were sent. `Booster.boost` adds the turn to `state` itself."""
        parent = delta.parent
        for link, message in delta.sent:
            new = MessageForm(link, message, parent)
            old = self.forms.pop(link, [])
            forms = self.forms[link] = [*(form for form in old if form != new), new]
            self.num_bytes += new.num_bytes if len(forms) > len(old) else 0
            parent = new.digest
            if len(forms) > _MAX_FORMS:
                self._drop_oldest(link)

    def shrink(self, max_bytes: int) -> None:
        """Drop the oldest messages until the rest fits; their turns will start over."""
        while self.num_bytes > max_bytes and self.forms:
            self._drop_oldest(next(iter(self.forms)))

    def _drop_oldest(self, link: Link) -> None:
        forms = self.forms[link]
        self.num_bytes -= forms.pop(0).num_bytes
        if not forms:
            del self.forms[link]


class Conversations:
    """The named conversations, bounded by number, bytes and age."""

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
        return self._by_key.size

    def get(self, key: str) -> Conversation:
        """Return the conversation of this name; an unknown one is new, and kept by `add`."""
        return self._by_key.get(key) or Conversation(key)

    def add(self, conversation: Conversation, delta: HistoryDelta) -> None:
        if delta.sent or delta.turn is not None:
            conversation.remember(delta)
            conversation.shrink(self._max_bytes)
            self._by_key.put(conversation.key, conversation, size=conversation.num_bytes)


class ResentMessages:
    """The rewritten messages that belong into a resent history.

    message index        0     1     2     question
    what a client resends | a   | b   | c   | d        |
    what the engine gets  | a'  | b   | c'  | repeated |   `sent` has a' and c'

    Args:
        conversation: None if the request belongs to none.
        question: index of the message to which the request gives documents; None: it gives none,
            so that no message gets documents which it had in an earlier request but are not part
            of the history: those of a question that is not answered yet.
        retrieved: keys of these documents.
        is_boosted: the client wants them boosted; None: that makes no difference.
        links: of all messages; empty: those with `seed` are made.
        seed: identifies what precedes the messages and belongs to their history.
        is_in_place: the messages contain the documents, an unanswered question as well.
    """

    def __init__(
        self,
        body: JsonBody,
        conversation: Conversation | None,
        *,
        question: int | None = None,
        retrieved: tuple[str, ...] | None = None,
        is_boosted: bool | None = None,
        links: Sequence[Link] = (),
        seed: bytes = b"",
        is_in_place: bool = False,
    ) -> None:
        self.sent: dict[int, SentMessage] = {}  # by index, all beside the question
        self.carried: dict[str, str] = {}  # labels of the documents in these, by key; maybe empty
        self.links: Sequence[Link] = ()  # of all messages; empty without a conversation
        # What the question became in an earlier request with the same documents.
        self.repeated: SentMessage | None = None
        # The conversation has a name, so that others may have equal histories in it.
        self.is_named = conversation is not None and bool(conversation.key)
        self.num_known = conversation.num_known if conversation is not None else 0
        self._digests: dict[int, Digest] = {}  # of the histories up to each known form
        self._bare: int | None = None  # the question, if its documents are given no more
        if conversation is None:
            return
        self.links = links or chain_links(body.message_digests, seed=seed)
        again = None
        if question is not None:
            forms = conversation.forms.get(self.links[question], ())
            fitting = [f for f in forms if f.sent.fits(retrieved, is_boosted=is_boosted)]
            again = (fitting or forms or (None,))[-1]  # the newest
        unanswered = _unanswered(body) if question is None and not is_in_place else None
        for at, form in _branch(conversation, self.links, again):
            if at == question:
                again = form
            else:
                self._add(at, form, is_bare=at == unanswered and form.sent.adds_documents)
        if (
            again is not None
            and again.sent.message
            and again.sent.fits(retrieved, is_boosted=is_boosted)
            and again.sent.referred <= self.carried.keys()
        ):
            self.repeated = again.sent

    def _add(self, at: int, form: MessageForm, *, is_bare: bool) -> None:
        old = form.sent
        if is_bare:
            self._bare = at
        # Drop a message whose referents were evicted: its turn starts over, too.
        elif old.referred <= self.carried.keys():
            self._digests[at] = form.digest
            if old.message:
                self.sent[at] = old
                self.carried.update(zip_longest(old.documents, old.labels, fillvalue=""))

    def digest(self, end: int) -> Digest:
        last = max([at for at in self._digests if at < end], default=None)
        return UNCHANGED if last is None else self._digests[last]

    def with_last(self, delta: HistoryDelta = _NOTHING) -> HistoryDelta:
        """Add the last message as it is sent, so that later requests resend it in this form.

        Without it, an equal message to which another request of the conversation gave documents
        would take its place.

        Args:
            delta: what the request adds otherwise.
        """
        if not self.links or not (self.is_named or self._bare is not None):
            return delta
        at = len(self.links) - 1 if self._bare is None else self._bare
        last = (self.links[at], self.sent.get(at, AS_IT_CAME))
        if not delta.sent:
            return delta._replace(sent=(last,), parent=self.digest(at))
        is_there = delta.sent[-1][0] == last[0]
        return delta if is_there else delta._replace(sent=(*delta.sent, last))

    def num_bytes(self, body: JsonBody, end: int | None = None) -> int:
        """Return the bytes of the messages before `end` as they are sent; None: of all."""
        return sum(
            len(self.sent[at].message) if at in self.sent else memoryview(message).nbytes
            for at, message in enumerate(body.messages[:end])
        )


def with_messages(
    body: JsonBody, fields: Mapping[str, Any], sent: Mapping[int, SentMessage]
) -> dict[str, Any]:
    if not sent:
        return dict(fields)
    messages = list(fields[body.list_name])
    for at, old in sent.items():
        messages[at] = Raw(old.message)
    return {**fields, body.list_name: messages}


def _unanswered(body: JsonBody) -> int | None:
    messages = body.fields.get(body.list_name) or ()
    for at in range(len(body.messages) - 1, -1, -1):
        role = messages[at].get("role") if isinstance(messages[at], dict) else None
        if role == "user":
            return at
        if role not in ANY.instruction_roles:
            return None
    return None


def _branch(
    conversation: Conversation, links: Sequence[Link], likely: MessageForm | None
) -> list[tuple[int, MessageForm]]:
    """Choose a form for each message of a history, so that all are of one branch, by index.

    The last message decides: its newest form says behind which history it was sent, and so on. A
    history that is not kept any more is replaced by the newest one.

    Args:
        likely: the form of its message where no later one says which; None: the newest.
    """
    places = {link: at for at, link in enumerate(links) if link in conversation.forms}
    by_digest: dict[Digest, MessageForm] | None = None
    chosen: list[tuple[int, MessageForm]] = []
    parent, end = None, len(links)
    for link, at in reversed(places.items()):
        if at >= end:
            continue
        if parent == UNCHANGED:
            break
        form = conversation.forms[link][-1]
        if likely is not None and link == likely.link:
            form = likely
        if parent is not None and form.digest != parent:
            if by_digest is None:
                by_digest = {f.digest: f for place in places for f in conversation.forms[place]}
            found = by_digest.get(parent)
            if found is not None and places[found.link] <= at:
                form = found
        end, parent = places[form.link], form.parent
        chosen.append((end, form))
    return chosen[::-1]
