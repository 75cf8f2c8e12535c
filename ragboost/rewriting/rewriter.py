"""Rewrite a request body: resend the history as it was sent, and boost the new documents.

Synchronous, so that a large body can be rewritten in a worker thread. Does not know HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from msgspec import Raw

from ragboost.booster import Booster, CarriedDocuments, Planned, Turn
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.errors import RagBoostError, RequestError
from ragboost.formats import FoundDocuments
from ragboost.formats.ragboost_object import without_object
from ragboost.hints import label_documents
from ragboost.rewriting.json_body import JsonBody
from ragboost.rewriting.parsed_request import Bypass, ParsedRequest, preamble
from ragboost.rewriting.sent_history import (
    Conversation,
    HistoryDelta,
    ResentMessages,
    SentMessage,
    with_messages,
)
from ragboost.types import Document

_NOTHING = HistoryDelta()
_NO_LABELS: Mapping[str, str] = {}


class BoostResult(NamedTuple):
    """A rewritten body and what was done to it."""

    fields: Mapping[str, Any]  # to encode; unchanged values are the request's own objects
    context: Context | None = None  # of the boosted documents; None if none were boosted
    num_documents: int = 0  # in this turn's part of the payload
    num_dropped: int = 0  # given, but not there, because the payload has them already
    # The reason for which nothing was boosted; None if something was, and where an earlier
    # request's result is sent again.
    bypass: Bypass | None = None
    delta: HistoryDelta = _NOTHING  # what the request adds to its conversation
    preamble: str = ""  # hash of the text before the boosted documents
    bytes_before: int = 0  # of the messages before the documents
    bytes_after: int = 0  # of the messages after the one that holds the documents


class Rewriter:
    """Rewrite requests; holds the settings that all of them share."""

    def __init__(self, settings: Settings) -> None:
        self._label_template = settings.hints.label_template

    def rewrite(
        self,
        request: ParsedRequest,
        booster: Booster,
        conversation: Conversation | None,
        *,
        planned: Planned | None = None,
    ) -> BoostResult:
        """Rewrite a request and boost its documents.

        Args:
            booster: of its tenant and backend.
            conversation: the one that it belongs to, whose `state` gets the new turn; or None.
            planned: the order of its documents, if they were planned with others.

        Raises:
            RequestError: a document of the `ragboost` object is malformed.
        """
        if request.shape is None:
            return _resend(request, conversation, bypass=request.bypass)
        rewriting = _Rewriting(request, booster, conversation, planned, self._label_template)
        if request.shape.in_place:
            return rewriting.in_place()
        if request.shape.in_message:
            bypass = None if request.is_boost_wanted else Bypass("option")
            return rewriting.into_message(bypass=bypass)
        return rewriting.beside_messages()

    def render(
        self, request: ParsedRequest, conversation: Conversation | None, *, bypass: Bypass
    ) -> BoostResult:
        """Rewrite a request without boosting it.

        The documents of a `ragboost` object are rendered into the message in the order given; all
        others are left alone.

        Args:
            bypass: the reason for not boosting it.
        """
        shape = request.shape
        if shape is None or shape.in_place or not shape.in_message:
            return _resend(request, conversation, bypass=bypass)
        rewriting = _Rewriting(request, None, conversation, None, self._label_template)
        return rewriting.into_message(bypass=bypass)


class _Rewriting:
    """One request with documents while it is rewritten."""

    def __init__(
        self,
        request: ParsedRequest,
        booster: Booster | None,
        conversation: Conversation | None,
        planned: Planned | None,
        label_template: str,
    ) -> None:
        assert request.shape is not None, "a request without documents"
        assert request.found is not None, "a shape without documents"
        self._request = request
        self._body = request.body
        self._shape = request.shape
        self._found = request.found
        self._booster = booster
        self._conversation = conversation
        self._planned = planned
        self._label_template = label_template

    def into_message(self, *, bypass: Bypass | None) -> BoostResult:
        """Write documents into the question's message, where later turns carry them, too.

        Args:
            bypass: the reason for rendering them in the order given; None: boost them.
        """
        body, found, conversation = self._body, self._found, self._conversation
        history = self._request.history(conversation, is_boosted=bypass is None)
        text_before = preamble(body, self._shape, found, first=min(history.sent, default=None))
        fields = with_messages(body, body.fields, history.sent)
        if history.repeated is not None:
            return self._repeat(fields, history, history.repeated, text_before, bypass=bypass)
        outcome = bypass or self._boost(conversation, history.carried, text_before)
        if isinstance(outcome, Bypass):
            return self._unboosted(fields, history, bypass=outcome)
        turn = conversation.state.turns[-1] if conversation is not None else None
        fields, delta = self._write(fields, history, outcome, turn=turn)
        before = history.num_bytes(body, found.message or 0)
        return self._boosted(fields, outcome, delta, text_before, before=before)

    def _repeat(
        self,
        fields: Mapping[str, Any],
        history: ResentMessages,
        repeated: SentMessage,
        text_before: str,
        *,
        bypass: Bypass | None,
    ) -> BoostResult:
        """Resend the question as well: a retry, or the next step of an agent that gives the turn's
        documents each time."""
        message, conversation = self._found.message, self._conversation
        assert message is not None, "a repeated message has an index"
        fields = with_messages(self._body, without_object(fields), {message: repeated})
        delta = _NOTHING
        if conversation is not None and conversation.key:  # now it is the newest form again
            link, parent = history.links[message], history.digest(message)
            delta = HistoryDelta(((link, repeated),), None, parent)
        if bypass is not None or history.sent:
            num = len(repeated.documents)
            return BoostResult(fields, None, num, len(repeated.retrieved) - num, bypass, delta)
        context = self._keep_order(repeated.documents, text_before)
        before = history.num_bytes(self._body, message)
        return self._boosted(fields, context, delta, text_before, before=before)

    def _unboosted(
        self, fields: Mapping[str, Any], history: ResentMessages, *, bypass: Bypass
    ) -> BoostResult:
        """Write the documents in the order given, with labels to which later turns may refer."""
        conversation, turn = self._conversation, None
        state = conversation.state if conversation is not None else None
        past = CarriedDocuments.of(state, history.carried, has_references=False)
        context = self._as_given(known=past.known, is_complete=past.is_complete)
        if self._booster is not None and state is not None:
            turn = self._booster.add_unboosted(state, context, is_leading=past.is_empty)
        fields, delta = self._write(fields, history, context, turn=turn, is_boosted=False)
        return BoostResult(fields, None, len(context.documents), bypass=bypass, delta=delta)

    def in_place(self) -> BoostResult:
        """Reorder documents in messages that the client resends with every later turn.

        The shape writes the same history the same way each time, given the order of the first
        documents; a conversation keeps that order even if the index would give another one.
        """
        found, body = self._found, self._body
        fields = without_object(body.fields)
        history = ResentMessages(body, self._conversation, is_in_place=True)
        own = history.sent.get(found.message) if found.message is not None else None
        is_other = own is not None and own.retrieved != found.keys
        others = {at: sent for at, sent in history.sent.items() if at != found.message}
        if is_other or any(sent.adds_documents for sent in others.values()):
            # Earlier turns carry documents in another shape: resend them, leave the rest alone.
            fields = with_messages(body, fields, history.sent)
            return BoostResult(fields, bypass=Bypass("mixed_shapes"), delta=history.with_last())
        if not self._request.is_boost_wanted:
            return BoostResult(fields, bypass=Bypass("option"), delta=history.with_last())
        if not found.documents:
            fields = self._shape.replace(fields, found, self._as_given())
            num = found.num_later - found.num_repeated
            fields = with_messages(body, fields, others)
            fields, delta = self._with_last(fields, history, _NOTHING)
            return BoostResult(fields, None, num, found.num_repeated, delta=delta)
        text_before = preamble(body, self._shape, found)
        outcome = self._keep_or_boost(own.documents if own else None, text_before)
        if isinstance(outcome, Bypass):
            return BoostResult(fields, bypass=outcome, delta=history.with_last())
        fields, delta = self._write(fields, history, outcome)
        fields, delta = self._with_last(with_messages(body, fields, others), history, delta)
        before, after = _bytes_around(body, found)
        return self._boosted(fields, outcome, delta, text_before, before=before, after=after)

    def beside_messages(self) -> BoostResult:
        """Reorder documents of this request alone; equal ones keep their order over turns."""
        request, body, conversation = self._request, self._body, self._conversation
        inside = request.history(conversation)  # earlier turns with documents in messages
        fields = without_object(body.fields)
        if not request.is_boost_wanted:
            fields = with_messages(body, fields, inside.sent)
            return BoostResult(fields, bypass=Bypass("option"), delta=inside.with_last())
        history = request.history(conversation, seed=self._found.seed)
        fields = with_messages(body, fields, {**inside.sent, **history.sent})
        earlier = list(history.sent.values())
        if history.repeated is not None:
            earlier.append(history.repeated)
        text_before = preamble(body, self._shape, self._found)
        outcome = self._keep_or_boost(earlier[-1].documents if earlier else None, text_before)
        if isinstance(outcome, Bypass):
            return BoostResult(fields, bypass=outcome, delta=inside.with_last())
        fields, delta = self._write(fields, history, outcome)
        after = history.num_bytes(body)
        return self._boosted(fields, outcome, delta, text_before, after=after)

    def _keep_or_boost(self, order: Sequence[str] | None, text_before: str) -> Context | Bypass:
        if order is not None:
            return self._keep_order(order, text_before)
        return self._boost(None, {}, text_before)

    def _boost(
        self, conversation: Conversation | None, carried: Mapping[str, str], text_before: str
    ) -> Context | Bypass:
        """Boost the documents. Errors that the caller can correct are raised, all others bypass."""
        assert self._booster is not None, "a request that is rendered is not boosted"
        try:
            return self._booster.boost(
                self._found.query,
                self._found.documents,
                session=conversation.state if conversation else None,
                history=carried if conversation else None,
                preamble=text_before,
                planned=self._planned,
            )
        except RagBoostError as error:
            if self._shape.is_ours and isinstance(error, RequestError):
                raise
            return Bypass.of(error)

    def _keep_order(self, order: Sequence[str], text_before: str) -> Context:
        """Record documents that are sent as in an earlier request, perhaps to another backend."""
        assert self._booster is not None, "a request that is rendered is not recorded"
        by_key = {document.key: document for document in reversed(self._found.documents)}
        context = self._context(tuple([by_key[key] for key in order]))
        entry = self._booster.record(context.documents, preamble=text_before)
        return replace(
            context,
            search_path=entry.search_path,
            predicted_cached_tokens=entry.cached_tokens,
            index_entry=entry,
        )

    def _as_given(
        self, *, known: Mapping[str, str] = _NO_LABELS, is_complete: bool = True
    ) -> Context:
        documents = self._found.documents
        context = self._context(documents, known=known, is_complete=is_complete)
        return replace(context, positions=tuple(range(len(documents))))

    def _context(
        self,
        documents: tuple[Document, ...],
        *,
        known: Mapping[str, str] = _NO_LABELS,
        is_complete: bool = True,
    ) -> Context:
        """Return a context with the documents in a given order, without hints."""
        index = {document.key: at for at, document in enumerate(documents)}
        return Context(
            query=self._found.query,
            documents=documents,
            retrieved=self._found.documents,
            positions=tuple([index[document.key] for document in self._found.documents]),
            labels=label_documents(
                documents, template=self._label_template, known=known, is_complete=is_complete
            ),
        )

    def _write(
        self,
        fields: Mapping[str, Any],
        history: ResentMessages,
        context: Context,
        *,
        turn: Turn | None = None,
        is_boosted: bool = True,
    ) -> tuple[dict[str, Any], HistoryDelta]:
        """Write a context into the body, and keep the bytes of the message that carries it."""
        written = self._shape.replace(fields, self._found, context)
        message, name = self._found.message, self._body.list_name
        if message is None or not history.links:
            return written, HistoryDelta(turn=turn)
        value = written[name][message]
        is_original = value is self._body.fields[name][message]
        sent = self._body.encode_bytes(self._body.messages[message] if is_original else value)
        if not is_original:
            messages = list(written[name])
            messages[message] = Raw(sent)
            written = {**written, name: messages}
        labels = context.labels if self._shape.in_message else ()
        retrieved, documents = _keys(context.retrieved), _keys(context.documents)
        kept = SentMessage(sent, retrieved, documents, is_boosted, labels)
        parent = history.digest(message)
        return written, HistoryDelta(((history.links[message], kept),), turn, parent)

    def _with_last(
        self, fields: Mapping[str, Any], history: ResentMessages, delta: HistoryDelta
    ) -> tuple[dict[str, Any], HistoryDelta]:
        """Keep the bytes of the last message, for turns that give documents in another shape."""
        fields, name = dict(fields), self._body.list_name
        if not (history.is_named and history.links):
            return fields, history.with_last(delta)
        *messages, last = fields[name]
        if last is self._body.fields[name][-1]:
            return fields, history.with_last(delta)
        written = self._body.encode_bytes(last)
        fields[name] = [*messages, Raw(written)]
        return fields, history.with_last(delta, SentMessage(written, (), ()))

    def _boosted(
        self,
        fields: Mapping[str, Any],
        context: Context,
        delta: HistoryDelta,
        text_before: str,
        *,
        before: int = 0,
        after: int = 0,
    ) -> BoostResult:
        num, repeated = len(context.documents), self._found.num_repeated
        return BoostResult(
            fields,
            context,
            num_documents=num + self._found.num_later - repeated,
            num_dropped=len(context.retrieved) - num + repeated,
            delta=delta,
            preamble=text_before,
            bytes_before=before,
            bytes_after=after,
        )


def _resend(
    request: ParsedRequest, conversation: Conversation | None, *, bypass: Bypass | None
) -> BoostResult:
    """Resend the rewritten messages of a request, and leave the rest alone."""
    body = request.body
    history = ResentMessages(body, conversation)
    fields = with_messages(body, without_object(body.fields), history.sent)
    return BoostResult(fields, bypass=bypass, delta=history.with_last())


def _keys(documents: Sequence[Document]) -> tuple[str, ...]:
    return tuple([document.key for document in documents])


def _bytes_around(body: JsonBody, found: FoundDocuments) -> tuple[int, int]:
    """Count the bytes of the messages before the documents' own, and of all others and their own.

    The second count leaves the documents out, but not other text of their message.
    """
    if found.message is None:
        return 0, 0
    sizes = [memoryview(message).nbytes for message in body.messages]
    texts = [document.text for document in found.documents]
    inside = sum([len(text) if text.isascii() else _num_bytes(text) for text in texts])
    return sum(sizes[: found.message]), max(0, sum(sizes[found.message :]) - inside)


def _num_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
