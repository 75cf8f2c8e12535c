"""Rewrite one request body: resend the history as it was sent, then boost the new documents.

Synchronous, so that a large body can be rewritten in a worker thread. Does not know HTTP.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.booster import Booster
from ragboost.config import Settings
from ragboost.errors import ContextIndexError, RagBoostError, RequestError
from ragboost.formats import Format, Found, UnknownShapeError, find_format, make_formats
from ragboost.formats.ragboost_object import FIELD, is_boost_wanted, ragboost_fields, without_object
from ragboost.hints import label_documents
from ragboost.planning import Planned
from ragboost.proxy.conversation import Conversation, Link, Sent, chain
from ragboost.proxy.payload import Payload
from ragboost.types import Context, Request

_REASONS: Mapping[type[RagBoostError], str] = {
    UnknownShapeError: "unknown_shape",
    RequestError: "bad_documents",
    ContextIndexError: "context_index",
}


class Rewritten(NamedTuple):
    """What is forwarded instead of the original.

    Attributes:
        body: the fields to encode; what is untouched is the payload's own object.
        context: of the documents that were boosted; None if none were.
        num_documents: documents that stand in this turn's part of the payload.
        num_dropped: documents given that do not, because the payload has them already.
        bypass: why nothing was boosted; None if something was.
        error: the failure behind `bypass`, or None.
        bytes_before: of the messages in front of the documents.
        bytes_behind: of the messages behind them, without the one that holds the documents.
    """

    body: Mapping[str, Any]
    context: Context | None = None
    num_documents: int = 0
    num_dropped: int = 0
    bypass: str | None = None
    error: RagBoostError | None = None
    bytes_before: int = 0
    bytes_behind: int = 0


class _History(NamedTuple):
    """The rewritten messages that stand in this payload.

    Attributes:
        sent: by index, all before the question.
        link: of the question's message; None without a conversation or a message.
        repeated: what the question's message was rewritten to when it came before, or None.
    """

    sent: Mapping[int, Sent]
    link: Link | None
    repeated: Sent | None


class Rewriter:
    """Holds what all requests share: the shapes and the settings."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._formats = make_formats(settings.hints)

    def front(self, payload: Payload, conversation: Conversation | None) -> Request | None:
        """The documents that will stand at the front of the payload in an order of our choice, to
        plan with; None if there are none.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        try:
            hit = find_format(self._formats, payload.body)
        except UnknownShapeError:
            return None
        if hit is None or not is_boost_wanted(ragboost_fields(payload.body)):
            return None
        shape, found = hit
        seed = b"" if shape.in_message else _seed(found)
        history = _read(payload, conversation, found=found, seed=seed)
        if history.sent or history.repeated is not None:
            return None
        return Request(found.query, found.documents)

    def rewrite(
        self,
        payload: Payload,
        booster: Booster,
        conversation: Conversation | None,
        *,
        planned: Planned | None = None,
        is_plain: bool = False,
    ) -> Rewritten:
        """Rewrite a body and remember in `conversation` what its messages became.

        Args:
            payload: the client's body.
            booster: of its tenant and backend.
            conversation: None: it belongs to none.
            planned: the order of its documents, if they were planned with others.
            is_plain: put the documents of a `ragboost` object into the message as they were given;
                leave everything else alone.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        body = without_object(payload.body)
        if is_plain and FIELD not in payload.body:
            return Rewritten(payload.body, bypass="no_documents")
        try:
            hit = find_format(self._formats, payload.body)
        except UnknownShapeError as error:
            body = self._with_history(body, _read(payload, conversation).sent)
            return Rewritten(body, bypass=_reason(error), error=error)
        if hit is None:
            body = self._with_history(body, _read(payload, conversation).sent)
            return Rewritten(body, bypass="no_documents")
        shape, found = hit
        if shape.in_message:
            wanted = not is_plain and is_boost_wanted(ragboost_fields(payload.body))
            return self._into_message(
                payload, shape, found, booster, conversation, planned, wanted=wanted
            )
        return self._beside_messages(payload, shape, found, booster, conversation, planned)

    def _into_message(
        self,
        payload: Payload,
        shape: Format,
        found: Found,
        booster: Booster,
        conversation: Conversation | None,
        planned: Planned | None,
        *,
        wanted: bool,
    ) -> Rewritten:
        """Documents that become part of the question's message and so of every later turn."""
        history = _read(payload, conversation, found=found)
        body = self._with_history(payload.body, history.sent)
        retrieved = tuple(document.key for document in found.documents)
        again = history.repeated
        if again is not None and found.message is not None and again.retrieved == retrieved:
            # A retry, or the next step of an agent that gives the turn's documents each time.
            body = self._with_history(without_object(body), {found.message: again})
            num = len(again.documents)
            return Rewritten(body, num_documents=num, num_dropped=len(retrieved) - num)
        standing = {key for sent in history.sent.values() for key in sent.documents}
        result = (
            self._boost(shape, found, booster, conversation, standing, planned) if wanted else None
        )
        rewritten = result if isinstance(result, Rewritten) else Rewritten(body, bypass="option")
        context = result if isinstance(result, Context) else self._plain(found)
        body = shape.replace(body, found, context)
        if conversation is not None and history.link is not None and found.message is not None:
            body = _remember(payload, body, found.message, conversation, history.link, context)
        if isinstance(result, Context):
            before = _num_bytes(payload, history, found.message or 0)
            return _boosted(body, context)._replace(bytes_before=before)
        return rewritten._replace(body=body, num_documents=len(context.documents))

    def _beside_messages(
        self,
        payload: Payload,
        shape: Format,
        found: Found,
        booster: Booster,
        conversation: Conversation | None,
        planned: Planned | None,
    ) -> Rewritten:
        """Documents of this request only. The same ones keep their order over a conversation."""
        history = _read(payload, conversation, found=found, seed=_seed(found))
        inside = _read(payload, conversation, found=found)  # earlier turns of the other kind
        body = without_object(payload.body)
        body = self._with_history(body, {**inside.sent, **history.sent})
        before = [*history.sent.values(), *([history.repeated] if history.repeated else [])]
        result: Context | Rewritten
        if before:
            result = self._in_order(found, before[-1].documents)
        else:
            result = self._boost(shape, found, booster, None, (), planned)
        if isinstance(result, Rewritten):
            return result._replace(body=body)
        body = shape.replace(body, found, result)
        if conversation is not None and history.link is not None and found.message is not None:
            body = _remember(payload, body, found.message, conversation, history.link, result)
        behind = _num_bytes(payload, history, len(payload.messages))
        return _boosted(body, result)._replace(bytes_behind=behind)

    def _boost(
        self,
        shape: Format,
        found: Found,
        booster: Booster,
        conversation: Conversation | None,
        standing: Collection[str],
        planned: Planned | None,
    ) -> Context | Rewritten:
        """Boost, or say why not: the proxy fails open, except for what the caller can mend."""
        try:
            if conversation is None:
                return booster.boost(found.query, found.documents, planned=planned)
            return booster.boost(
                found.query,
                found.documents,
                session=conversation.key,
                history=standing,
                planned=planned,
            )
        except RagBoostError as error:
            if shape.is_ours and isinstance(error, RequestError):
                raise
            return Rewritten({}, bypass=_reason(error), error=error)

    def _plain(self, found: Found) -> Context:
        """The documents as they were given: all of them, in their order, without hints."""
        labels = label_documents(
            found.documents, template=self._settings.hints.label_template, known={}
        )
        return Context(
            query=found.query,
            documents=found.documents,
            retrieved=found.documents,
            positions=tuple(range(len(found.documents))),
            labels=labels,
        )

    def _in_order(self, found: Found, order: tuple[str, ...]) -> Context:
        """The documents in the order in which an earlier turn had them."""
        by_key = {document.key: document for document in reversed(found.documents)}
        documents = tuple(by_key[key] for key in order)
        places = {key: at for at, key in enumerate(order)}
        positions = tuple(places[document.key] for document in found.documents)
        plain = self._plain(replace(found, documents=documents))
        return replace(plain, retrieved=found.documents, positions=positions)

    @staticmethod
    def _with_history(body: Mapping[str, Any], sent: Mapping[int, Sent]) -> dict[str, Any]:
        if not sent:
            return dict(body)
        messages = list(body["messages"])
        for at, old in sent.items():
            messages[at] = Raw(old.message)
        return {**body, "messages": messages}


def _seed(found: Found) -> bytes:
    """What stands above the messages of a conversation, for the hashes of its history."""
    return "\n".join(document.key for document in found.documents).encode()


def _read(
    payload: Payload,
    conversation: Conversation | None,
    *,
    found: Found | None = None,
    seed: bytes = b"",
) -> _History:
    """Find what this payload's messages were rewritten to before."""
    if conversation is None or (found is not None and found.message is None):
        return _History({}, None, None)
    links = chain(payload.messages, seed=seed)
    end = len(links) if found is None or found.message is None else found.message
    sent = {at: conversation.sent[links[at]] for at in range(end) if links[at] in conversation.sent}
    if end == len(links):
        return _History(sent, None, None)
    return _History(sent, links[end], conversation.sent.get(links[end]))


def _remember(
    payload: Payload,
    body: dict[str, Any],
    message: int,
    conversation: Conversation,
    link: Link,
    context: Context,
) -> dict[str, Any]:
    """Keep the question's message; what is kept is the very object that is sent."""
    raw = payload.encode_value(body["messages"][message])
    retrieved = tuple(document.key for document in context.retrieved)
    documents = tuple(document.key for document in context.documents)
    conversation.remember(link, Sent(bytes(raw), retrieved, documents))
    messages = list(body["messages"])
    messages[message] = raw
    return {**body, "messages": messages}


def _num_bytes(payload: Payload, history: _History, end: int) -> int:
    """Bytes of the messages before `end`, as they are sent."""
    return sum(
        len(history.sent[at].message) if at in history.sent else memoryview(message).nbytes
        for at, message in enumerate(payload.messages[:end])
    )


def _boosted(body: Mapping[str, Any], context: Context) -> Rewritten:
    num = len(context.documents)
    return Rewritten(body, context, num, len(context.retrieved) - num)


def _reason(error: RagBoostError) -> str:
    for kind in type(error).__mro__:
        if kind in _REASONS:
            return _REASONS[kind]
    return "error"
