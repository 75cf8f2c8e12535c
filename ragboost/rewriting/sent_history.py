"""The messages of conversations as they were sent, kept to be sent again byte for byte.

A chat client resends its history in its original form. Each message that was rewritten is found by
the link of the original history up to and including it: an edited, truncated or foreign history
finds none, and the conversation starts over. Branches of a conversation may have equal messages
with other documents: each form of a message knows the history that it was sent behind. Does not
know texts of documents or HTTP.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from msgspec import Raw

from ragboost.booster import SessionState, Turn
from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.rewriting.json_body import JsonBody, Link, chain_links
from ragboost.wires.registry import INSTRUCTION_ROLES

Digest = bytes
"""Hash of a history as the engine received it; `UNCHANGED` if nothing of it was rewritten."""

UNCHANGED: Digest = b""
_MAX_FORMS = 8  # of one message: branches of a conversation
FORM_BYTES = 400
"""Memory of a form beside its message."""


class SentMessage(NamedTuple):
    """A message as it was sent.

    Attributes:
        message: its bytes as the engine received them; empty if they are the client's own.
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

    @property
    def adds_documents(self) -> bool:
        """The client gave documents beside the message, which does not contain them by itself."""
        return bool(self.labels or self.referred)


AS_IT_CAME = SentMessage(b"", (), (), is_boosted=False)
"""A message that was not rewritten."""


@dataclass(frozen=True)
class MessageForm:
    """One way in which a message was sent.

    Attributes:
        link: of the original history up to it.
        sent: the rewritten message.
        parent: the history that it was sent behind; None if that is not known.
    """

    link: Link
    sent: SentMessage
    parent: Digest | None = None

    @property
    def num_bytes(self) -> int:
        """Memory that the form takes."""
        return FORM_BYTES + len(self.sent.message)

    @cached_property
    def digest(self) -> Digest:
        """Identify the history up to and including the message."""
        hashed = hashlib.sha256(self.link + (self.parent or UNCHANGED))
        hashed.update(self.sent.message)
        return hashed.digest()


class Given(NamedTuple):
    """The documents that a request gives beside its question.

    Attributes:
        keys: of the documents, in relevance order.
        is_boosted: the client wants them boosted; None if that makes no difference.
    """

    keys: tuple[str, ...]
    is_boosted: bool | None = None

    def fits(self, sent: SentMessage) -> bool:
        """Return True if a message was rewritten for the same documents."""
        is_as_wanted = self.is_boosted is None or self.is_boosted == sent.is_boosted
        return sent.retrieved == self.keys and is_as_wanted


class HistoryDelta(NamedTuple):
    """The addition of one request to a conversation, if any.

    Attributes:
        sent: its messages as they were sent, by link, each behind the one before it.
        turn: the Booster's record of it.
        parent: the history that the first was sent behind; None if that is not known.
    """

    sent: tuple[tuple[Link, SentMessage], ...] = ()
    turn: Turn | None = None
    parent: Digest | None = None


_NOTHING = HistoryDelta()


class Conversation:
    """One conversation of one user with one model.

    Args:
        key: its name over all users and models; empty if it has none.
        deltas: what its requests added, oldest first.

    Attributes:
        key: the name.
        forms: of each message by link, newest last.
        num_bytes: size of all forms.
        state: the Booster's record of its turns.
    """

    def __init__(self, key: str = "", deltas: Iterable[HistoryDelta] = ()) -> None:
        self.key = key
        self.forms: dict[Link, list[MessageForm]] = {}
        self.num_bytes = 0
        self.state = SessionState(key or "unnamed")
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
            conversation.remember(delta)
            conversation.shrink(self._max_bytes)
            self._by_key.put(conversation.key, conversation, size=conversation.num_bytes)


class ResentMessages(NamedTuple):
    """The rewritten messages that belong into a resent history.

    Attributes:
        sent: by index of the message, all before the question.
        carried: labels of the documents that they carry, by key; empty labels are not shown.
        links: of all messages; empty without a conversation.
        repeated: what the question's message was rewritten to in an earlier request with the same
            documents, or None.
        digests: of the histories up to and including each message of which a form is known.
        bare: index of the question, if it had documents in an earlier request but has none now.
        is_named: the conversation has a name, so that others may have equal histories in it.
    """

    sent: Mapping[int, SentMessage] = {}
    carried: Mapping[str, str] = {}
    links: Sequence[Link] = ()
    repeated: SentMessage | None = None
    digests: Mapping[int, Digest] = {}
    bare: int | None = None
    is_named: bool = False

    @classmethod
    def find(
        cls,
        body: JsonBody,
        conversation: Conversation | None,
        *,
        question: int | None = None,
        given: Given | None = None,
        seed: bytes = b"",
        is_in_place: bool = False,
    ) -> Self:
        """Find the rewritten messages of a request's history.

        Args:
            body: of the request.
            conversation: None if it belongs to none.
            question: index of the message to which the request gives documents; None: it gives
                none, so that no message gets documents which it had in an earlier request but are
                not part of the history: those of a question that is not answered yet.
            given: these documents.
            seed: identifies what precedes the messages and belongs to their history.
            is_in_place: the messages contain the documents, an unanswered question as well.
        """
        if conversation is None:
            return cls()
        links = chain_links(body.message_digests, seed=seed)
        again = None
        if question is not None:
            again = _newest(conversation.forms.get(links[question], ()), given)
        unanswered = _unanswered(body) if question is None and not is_in_place else None
        sent: dict[int, SentMessage] = {}
        carried: dict[str, str] = {}
        digests: dict[int, Digest] = {}
        bare = None
        for at, form in _branch(conversation, links[:question], last=again):
            old = form.sent
            if at == unanswered and old.adds_documents:
                bare = at
                continue
            # Drop a message whose referents were evicted: its turn starts over, too.
            if old.referred <= carried.keys():
                digests[at] = form.digest
                if not old.message:
                    continue
                sent[at] = old
                carried.update(zip_longest(old.documents, old.labels, fillvalue=""))
        repeated = None
        is_same = again is not None and given is not None and given.fits(again.sent)
        if again is not None and again.sent.message and is_same:
            repeated = again.sent if again.sent.referred <= carried.keys() else None
        is_named = bool(conversation.key)
        return cls(sent, carried, links, repeated, digests, bare, is_named)

    def digest(self, end: int) -> Digest:
        """Identify the history before a message as it is sent."""
        last = max([at for at in self.digests if at < end], default=None)
        return UNCHANGED if last is None else self.digests[last]

    def with_last(
        self, delta: HistoryDelta = _NOTHING, message: SentMessage | None = None
    ) -> HistoryDelta:
        """Add the last message as it is sent, so that later requests resend it in this form.

        Without it, an equal message to which another request of the conversation gave documents
        would take its place.

        Args:
            delta: what the request adds otherwise.
            message: the last message; None: as it came, or as an earlier request sent it.
        """
        if not self.links or not (self.is_named or self.bare is not None):
            return delta
        at = len(self.links) - 1 if self.bare is None else self.bare
        last = (self.links[at], message or self.sent.get(at, AS_IT_CAME))
        if not delta.sent:
            return delta._replace(sent=(last,), parent=self.digest(at))
        is_known = delta.sent[-1][0] == last[0]
        return delta if is_known else delta._replace(sent=(*delta.sent, last))

    def num_bytes(self, body: JsonBody, end: int | None = None) -> int:
        """Return the bytes of the messages before `end` as they are sent; None: of all."""
        return sum(
            len(self.sent[at].message) if at in self.sent else memoryview(message).nbytes
            for at, message in enumerate(body.messages[:end])
        )


def with_messages(
    body: JsonBody, fields: Mapping[str, Any], sent: Mapping[int, SentMessage]
) -> dict[str, Any]:
    """Return the fields of a body with these messages, by index, as they were sent before."""
    if not sent:
        return dict(fields)
    name = body.list_name
    messages = list(fields[name])
    for at, old in sent.items():
        messages[at] = Raw(old.message)
    return {**fields, name: messages}


def _newest(forms: Sequence[MessageForm], given: Given | None) -> MessageForm | None:
    """Return the newest form of a message: for the given documents if there is one, or for any."""
    fitting = [form for form in forms if given is not None and given.fits(form.sent)]
    return (fitting or forms or (None,))[-1]


def _unanswered(body: JsonBody) -> int | None:
    """Return the index of the question to which no message is an answer yet, if there is one."""
    messages = body.fields.get(body.list_name)
    for at in range(len(body.messages) - 1, -1, -1):
        role = messages[at].get("role") if isinstance(messages[at], dict) else None  # type: ignore[index]
        if role == "user":
            return at
        if role not in INSTRUCTION_ROLES:
            return None
    return None


def _branch(
    conversation: Conversation, links: Sequence[Link], *, last: MessageForm | None
) -> list[tuple[int, MessageForm]]:
    """Choose a form for each message of a history, so that all are of one branch, by index.

    The last message decides: its newest form says behind which history it was sent, and so on. A
    history that is not known any more is replaced by the newest one.

    Args:
        conversation: has the forms.
        links: of the history's messages.
        last: a form of the message after them, or None.
    """
    places = {link: at for at, link in enumerate(links) if link in conversation.forms}
    known: dict[Digest, MessageForm] | None = None
    chosen: list[tuple[int, MessageForm]] = []
    parent, end = (None if last is None else last.parent), len(links)
    for link, at in reversed(places.items()):
        if at >= end:
            continue
        if parent == UNCHANGED:
            break
        form = conversation.forms[link][-1]
        if parent is not None and form.digest != parent:
            if known is None:
                known = {f.digest: f for each in places for f in conversation.forms[each]}
            found = known.get(parent)
            if found is not None and places[found.link] <= at:
                form = found
        end, parent = places[form.link], form.parent
        chosen.append((end, form))
    return chosen[::-1]
