"""The messages of conversations as they were sent, kept to be sent again byte for byte.

A rewritten message is found by the link of the original history up to it: an edited, truncated or
foreign history finds none. Where branches differ, each form knows what it was sent behind.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.booster import SessionState, Turn
from ragboost.requests.formats.citations import CitationMap
from ragboost.requests.formats.groups import Edit, splice
from ragboost.requests.formats.numbering import later_texts
from ragboost.requests.json_body import JsonBody, Link
from ragboost.requests.marked_messages import marked_like
from ragboost.requests.wires.body import Path, at_path, put
from ragboost.requests.wires.registry import ANY

Digest = bytes
"""Hash of a history as the engine received it; `UNCHANGED` if nothing of it was rewritten."""

UNCHANGED: Digest = b""
FORM_BYTES = 400  # memory of a form beside its message
_NUMBER_BYTES = 200  # and of each number of its citations


class SentMessage(NamedTuple):
    message: bytes  # as the engine received it, without cache breakpoints; empty: the client's own
    retrieved: tuple[str, ...]  # keys of the documents that the client gave with it, by relevance
    documents: tuple[str, ...]  # keys of those that it carries in full, in prompt order
    is_boosted: bool = True  # else they are in the order given, without hints
    labels: tuple[str, ...] = ()  # of `documents`, as the message shows them; empty if it does not
    is_order_hinted: bool = True  # unless the hint cost too much: see `Context`
    # The numbers that its documents have here for the client's, if they were moved: for whatever
    # is said of them behind it.
    citations: CitationMap | None = None

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
    turn: Turn | None = field(default=None, compare=False)  # the Booster's record of its request

    @property
    def num_bytes(self) -> int:
        citations = self.sent.citations
        num = len(citations.numbers) if citations is not None else 0
        return FORM_BYTES + len(self.sent.message) + _NUMBER_BYTES * num

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

    def forms(self) -> Iterator[MessageForm]:
        form: MessageForm | None = None
        for link, message in self.sent:
            if form is None:
                form = MessageForm(link, message, self.parent, self.turn)
            else:
                form = MessageForm(link, message, form.digest)
            yield form


_NOTHING = HistoryDelta()


class Conversation:
    """The known part of one request's conversation.

    Args:
        forms: of its messages, oldest first.
        num_known: messages at the beginning of the request that were sent before, in these forms or
            as they came.
    """

    def __init__(self, forms: Iterable[MessageForm] = (), *, num_known: int = 0) -> None:
        self.num_known = num_known
        self.forms: dict[Link, list[MessageForm]] = {}  # of each message, newest last
        for form in forms:
            self.forms.setdefault(form.link, []).append(form)


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
        links: of all messages.
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
        is_in_place: bool = False,
    ) -> None:
        self.sent: dict[int, SentMessage] = {}  # by index, all beside the question
        self.carried: dict[str, str] = {}  # labels of the documents in these, by key; maybe empty
        self.links: Sequence[Link] = ()  # of all messages; empty without a conversation
        # What the question became in an earlier request with the same documents.
        self.repeated: SentMessage | None = None
        self.state = SessionState("proxied")  # the Booster's record of the turns in `sent`
        self.num_known = 0  # messages at the beginning that were sent before
        self._digests: dict[int, Digest] = {}  # of the histories up to each known form
        self._bare: int | None = None  # the question, if its documents are given no more
        self._body = body
        self._is_in_place = is_in_place
        if conversation is None:
            return
        self.links = links
        known = (at for at in range(len(links), 0, -1) if links[at - 1] in conversation.forms)
        self.num_known = min(conversation.num_known, next(known, 0))
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
                if form.turn is not None:
                    self.state.turns.append(form.turn)
                    self.state.next_turn = form.turn.number + 1
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
        if not self.links:
            return delta
        at = len(self.links) - 1 if self._bare is None else self._bare
        added = {self.links.index(link): sent for link, sent in delta.sent}
        # What was sent behind a message in a new form is a branch of its own.
        places = {at, *added, *(i for i in self.sent if min(added, default=at) < i < at)}
        if not added:
            places.update(self._places_as_they_came(at))
        ordered = sorted(places)
        sent = [(self.links[i], added.get(i) or self.sent.get(i, AS_IT_CAME)) for i in ordered]
        parent = delta.parent if added else self.digest(ordered[0])
        return delta._replace(sent=tuple(sent), parent=parent)

    def _places_as_they_came(self, end: int) -> Sequence[int]:
        """Return messages that may hold documents and were sent as they came, for the first time: a
        later history may be cut behind one of them."""
        if not self._is_in_place:
            return ()
        messages = self._body.fields[self._body.list_name]
        new = range(self.num_known, end)
        return [at for at in new if at not in self.sent and not _is_answer(messages[at])]

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
        client = body.fields[body.list_name][at]
        is_marked = body.has_marks and isinstance(client, dict)
        messages[at] = Raw(marked_like(old.message, client) if is_marked else old.message)
    return {**fields, body.list_name: messages}


def renumbered(
    body: JsonBody, fields: Mapping[str, Any], sent: Mapping[int, SentMessage], *, num_known: int
) -> tuple[Mapping[str, Any], CitationMap | None]:
    """Write the numbers of a resent list of documents into what is said of them behind, as far as
    that is new; return the map of the answer as well."""
    moved = [at for at in sorted(sent) if sent[at].citations is not None]
    if not moved or (citations := sent[moved[0]].citations) is None:
        return fields, None
    behind, copies, originals = later_texts(body.fields, moved[0]), dict[int, Any](), fields
    edits: dict[Path, list[Edit]] = defaultdict(list)
    for text in behind.texts:
        place = text.path[:2]
        if text.message >= num_known and at_path(originals, place) is at_path(body.fields, place):
            edits[text.path] += text.edits(citations)
    for path in filter(edits.__getitem__, edits):
        fields = put(fields, path, splice(at_path(fields, path), edits[path]), copies=copies)
    mapped = citations.beside(behind.others)
    return fields, mapped.of_answers.inverse if mapped is not None else None


def _is_answer(message: Any) -> bool:
    return not isinstance(message, dict) or message.get("role") == "assistant"


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
