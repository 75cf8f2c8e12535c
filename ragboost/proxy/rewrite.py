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
from ragboost.formats.ragboost_object import is_boost_wanted, ragboost_fields, without_object
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


class Detected(NamedTuple):
    """The documents of a body and their shape, or why there are none to boost."""

    shape: Format | None = None
    found: Found | None = None
    bypass: str | None = None
    error: RagBoostError | None = None


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
        self._formats = make_formats(settings)

    def detect(self, payload: Payload) -> Detected:
        """Find the documents of a body.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        try:
            hit = find_format(self._formats, payload.body)
        except UnknownShapeError as error:
            return Detected(bypass=_reason(error), error=error)
        return Detected(*hit) if hit else Detected(bypass="no_documents")

    def front(
        self,
        payload: Payload,
        conversation: Conversation | None,
        *,
        detected: Detected | None = None,
    ) -> Request | None:
        """The documents that will stand at the front of the payload in an order of our choice, to
        plan with; None if there are none, or if other text stands before them.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        shape, found, *_ = detected or self.detect(payload)
        if shape is None or found is None or not found.documents or found.preamble:
            return None
        if not is_boost_wanted(ragboost_fields(payload.body)):
            return None
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
        detected: Detected | None = None,
        planned: Planned | None = None,
        is_plain: bool = False,
    ) -> Rewritten:
        """Rewrite a body and remember in `conversation` what its messages became.

        Args:
            payload: the body.
            booster: of its tenant and backend.
            conversation: its conversation, or None.
            detected: what `detect` found; None: it is called here.
            planned: the order of its documents, if they were planned with others.
            is_plain: put the documents of a `ragboost` object into the message as they were given;
                leave all others alone.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        detected = detected or self.detect(payload)
        shape, found = detected.shape, detected.found
        is_left_alone = is_plain and shape is not None and (shape.in_place or not shape.in_message)
        if shape is None or found is None or is_left_alone:
            history = _read(payload, conversation).sent
            body = self._with_history(without_object(payload.body), history)
            return Rewritten(body, bypass=detected.bypass, error=detected.error)
        if shape.in_place:
            return self._in_place(payload, shape, found, booster, conversation, planned)
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
            rewritten = Rewritten(body, num_documents=num, num_dropped=len(retrieved) - num)
            if not wanted or history.sent:
                return rewritten
            context = self._again(found, again.documents, booster)
            before = _num_bytes(payload, history, found.message)
            return rewritten._replace(context=context, bytes_before=before)
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

    def _in_place(
        self,
        payload: Payload,
        shape: Format,
        found: Found,
        booster: Booster,
        conversation: Conversation | None,
        planned: Planned | None,
    ) -> Rewritten:
        """Documents in messages that the client resends with every later turn.

        The shape writes the same history the same way each time, given the order of the first
        documents; a conversation keeps that order even when the index would give another one.
        """
        body = without_object(payload.body)
        sent = dict(_read(payload, conversation).sent)
        own = sent.pop(found.message, None) if found.message is not None else None
        keys = tuple(document.key for document in found.documents)
        if sent or (own is not None and own.retrieved != keys):
            # Earlier turns carry documents in another shape: they are resent, the rest passes.
            history = _read(payload, conversation).sent
            return Rewritten(self._with_history(body, history), bypass="mixed_shapes")
        if not is_boost_wanted(ragboost_fields(payload.body)):
            return Rewritten(body, bypass="option")
        if not found.documents:
            body = shape.replace(body, found, self._plain(found))
            return _with_later(Rewritten(body), found)
        result: Context | Rewritten
        if own is not None:
            result = self._in_order(found, own.documents)
        else:
            result = self._boost(shape, found, booster, None, (), planned)
        if isinstance(result, Rewritten):
            return result._replace(body=body)
        body = shape.replace(body, found, result)
        link = _read(payload, conversation, found=found).link
        if conversation is not None and link is not None and found.message is not None:
            body = _remember(payload, body, found.message, conversation, link, result)
        before, behind = _bytes_around(payload, found)
        boosted = _boosted(body, result)._replace(bytes_before=before, bytes_behind=behind)
        return _with_later(boosted, found)

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
                return booster.boost(
                    found.query, found.documents, preamble=found.preamble, planned=planned
                )
            return booster.boost(
                found.query,
                found.documents,
                session=conversation.state or conversation.key,
                history=standing,
                preamble=found.preamble,
                planned=planned,
            )
        except RagBoostError as error:
            if shape.is_ours and isinstance(error, RequestError):
                raise
            return Rewritten({}, bypass=_reason(error), error=error)

    def _again(self, found: Found, order: tuple[str, ...], booster: Booster) -> Context:
        """Documents at the front that are sent as before, maybe to another backend."""
        context = self._in_order(found, order)
        recorded = booster.record(context.documents, preamble=found.preamble)
        return replace(
            context,
            search_path=recorded.search_path,
            predicted_cached_tokens=recorded.cached_tokens,
            recorded=recorded,
        )

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
    links = chain(payload.message_digests, seed=seed)
    end = len(links) if found is None or found.message is None else found.message
    sent: dict[int, Sent] = {}
    standing: set[str] = set()
    for at in range(end):
        old = conversation.sent.get(links[at])
        # What a message refers to may have been forgotten: its turn then starts over, too.
        if old is not None and old.referred <= standing:
            sent[at] = old
            standing.update(old.documents)
    if end == len(links):
        return _History(sent, None, None)
    repeated = conversation.sent.get(links[end])
    if repeated is not None and not repeated.referred <= standing:
        repeated = None
    return _History(sent, links[end], repeated)


def _remember(
    payload: Payload,
    body: dict[str, Any],
    message: int,
    conversation: Conversation,
    link: Link,
    context: Context,
) -> dict[str, Any]:
    """Keep the question's message; what is kept is the very object that is sent."""
    value = body["messages"][message]
    is_original = value is payload.body["messages"][message]
    raw = payload.messages[message] if is_original else payload.encode_value(value)
    retrieved = tuple(document.key for document in context.retrieved)
    documents = tuple(document.key for document in context.documents)
    conversation.remember(link, Sent(bytes(raw), retrieved, documents))
    if is_original:
        return body
    messages = list(body["messages"])
    messages[message] = raw
    return {**body, "messages": messages}


def _num_bytes(payload: Payload, history: _History, end: int) -> int:
    """Bytes of the messages before `end`, as they are sent."""
    return sum(
        len(history.sent[at].message) if at in history.sent else memoryview(message).nbytes
        for at, message in enumerate(payload.messages[:end])
    )


def _bytes_around(payload: Payload, found: Found) -> tuple[int, int]:
    """Bytes of the messages in front of documents in a message, and of what else is behind; other
    text of their own message counts as behind them."""
    if found.message is None:
        return 0, 0
    sizes = [memoryview(message).nbytes for message in payload.messages]
    inside = sum(len(document.text.encode()) for document in found.documents)
    return sum(sizes[: found.message]), max(0, sum(sizes[found.message :]) - inside)


def _boosted(body: Mapping[str, Any], context: Context) -> Rewritten:
    num = len(context.documents)
    return Rewritten(body, context, num, len(context.retrieved) - num)


def _with_later(rewritten: Rewritten, found: Found) -> Rewritten:
    """Count the documents behind those that were ordered."""
    return rewritten._replace(
        num_documents=rewritten.num_documents + found.num_later - found.num_repeated,
        num_dropped=rewritten.num_dropped + found.num_repeated,
    )


def _reason(error: RagBoostError) -> str:
    for kind in type(error).__mro__:
        if kind in _REASONS:
            return _REASONS[kind]
    return "error"
