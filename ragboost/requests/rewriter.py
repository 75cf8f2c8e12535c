"""Rewrite a request body: resend the history as it was sent, and boost the new documents.

Synchronous, so that a large body can be rewritten in a worker thread. Does not know HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from msgspec import Raw

from ragboost.booster import Booster, CarriedDocuments, SessionState, Turn
from ragboost.booster.context import Context
from ragboost.errors import RagBoostError, RequestError
from ragboost.hints import label_documents
from ragboost.ordering import Order
from ragboost.requests.formats import Format, FoundDocuments
from ragboost.requests.formats.citations import CitationMap
from ragboost.requests.formats.documents import order_of
from ragboost.requests.formats.ragboost_object import blank_positions, without_object
from ragboost.requests.marked_messages import unmarked
from ragboost.requests.parsed_request import NUMBERED, Bypass, ParsedRequest
from ragboost.requests.prompt_prefix import prompt_prefix
from ragboost.requests.sent_history import (
    Conversation,
    HistoryDelta,
    ResentMessages,
    SentMessage,
    renumbered,
    with_messages,
)
from ragboost.types import KEY_OF, Document

_NO_LABELS: Mapping[str, str] = {}


class Rewriting:
    """One request while it is rewritten, and then what it was rewritten to.

    Args:
        conversation: what is known of its own; None: nothing is, nor shall be.
    """

    def __init__(
        self, request: ParsedRequest, conversation: Conversation | None, *, label_template: str
    ) -> None:
        # To encode; unchanged values are the request's own objects.
        self.fields: Mapping[str, Any] = without_object(request.body.fields)
        self.context: Context | None = None  # of the boosted documents; None if none were boosted
        self.num_documents = 0  # in this turn's part of the payload
        self.num_dropped = 0  # given, but not there, because the payload has them already
        # Why nothing was boosted; None also where an earlier request's result is sent again.
        self.bypass: Bypass | None = None
        self.delta = HistoryDelta()  # what the request adds to its conversation
        self.citations: CitationMap | None = None  # of the answer; None: it stays as it is
        self.prompt_prefix = ""  # hash of the text before the documents
        self.order_gain = 0.0  # cached tokens beyond those of the client's order, estimated
        self.bytes_before = 0  # of the messages before the documents
        self.bytes_after = 0  # of the messages after the one that holds the documents
        self._request = request
        self._body = request.body
        self._conversation = conversation
        self._label_template = label_template
        self._booster: Booster | None = None
        self._planned: Order | None = None
        self._ratio: float | None = None
        self._resent: dict[int, SentMessage] = {}  # of the history, by index

    def boost(
        self,
        booster: Booster,
        *,
        planned: Order | None = None,
        recompute_ratio: float | None = None,
    ) -> Self:
        """Rewrite the request and boost its documents.

        Args:
            booster: of its tenant and backend.
            planned: the order of its documents, if they were planned with others.
            recompute_ratio: of its chunks; None: the backend computes all exactly.

        Raises:
            RequestError: a document of the `ragboost` object is malformed.
        """
        shape, self._booster, self._planned = self._request.shape, booster, planned
        self._ratio = recompute_ratio
        if shape is None:
            self._resend(self._request.bypass)
        elif shape.in_place:
            self._reorder_in_place()
        elif shape.in_message:
            self._write_into_message(None if self._request.is_boost_wanted else Bypass("option"))
        else:
            self._reorder_beside_messages()
        return self

    def render(self, bypass: Bypass) -> Self:
        """Rewrite the request without boosting it, for this reason.

        The documents of a `ragboost` object are rendered into the message in the order given; all
        others are left alone.
        """
        shape = self._request.shape
        if shape is None or shape.in_place or not shape.in_message:
            self._resend(bypass)
        else:
            self._write_into_message(bypass)
        return self

    @property
    def num_blank(self) -> int:
        """Number of documents that are left out, since they have no text."""
        found, shape = self._request.found, self._request.shape
        if found is None or shape is None:
            return len(blank_positions(self._request.options.get("documents")))
        return len(found.blank) if shape.is_ours or self.context is not None else 0

    @property
    def _shape(self) -> Format:
        assert self._request.shape is not None, "a request without documents"
        return self._request.shape

    @property
    def _found(self) -> FoundDocuments:
        assert self._request.found is not None, "a request without documents"
        return self._request.found

    def _put(self, sent: Mapping[int, SentMessage]) -> None:
        self.fields = with_messages(self._body, self.fields, sent)
        self._resent.update(sent)

    def _leave(self, bypass: Bypass | None, history: ResentMessages) -> None:
        self.bypass = bypass
        self._renumber(history)
        self._keep_written(history)

    def _renumber(self, history: ResentMessages) -> None:
        """Write the numbers of resent documents into what is said of them behind."""
        self.fields, self.citations = renumbered(
            self._body, self.fields, self._resent, num_known=history.num_known
        )

    def _resend(self, bypass: Bypass | None) -> None:
        history = ResentMessages(self._body, self._conversation, links=self._request.links)
        self._put(history.sent)
        self._leave(bypass, history)

    def _write_into_message(self, bypass: Bypass | None) -> None:
        """Write documents into the question's message, where later turns carry them, too.

        Args:
            bypass: the reason for rendering them in the order given; None: boost them.
        """
        body, found, conversation = self._body, self._found, self._conversation
        history = self._request.history(conversation, is_boosted=bypass is None)
        first = min((at for at, sent in history.sent.items() if sent.documents), default=None)
        self.prompt_prefix = self._request.prompt_prefix
        if first not in (None, found.message):
            kind = self._request.kind
            self.prompt_prefix = prompt_prefix(body, self._shape, found, first=first, kind=kind)
        self._put(history.sent)
        state = history.state if conversation is not None else None
        if history.repeated is not None:
            self._repeat(history, history.repeated, bypass)
        elif isinstance(outcome := bypass or self._boost(state, history.carried), Bypass):
            self._write_unboosted(history, outcome)
        else:
            turn = history.state.turns[-1] if conversation is not None else None
            self._write(history, outcome, turn=turn)
            self._count(outcome, before=history.num_bytes(body, found.message or 0))
        self._renumber(history)
        self._keep_written(history)

    def _repeat(
        self, history: ResentMessages, repeated: SentMessage, bypass: Bypass | None
    ) -> None:
        """Resend the question as well: a retry, or the next step of an agent that gives the turn's
        documents each time."""
        message = self._found.message
        assert message is not None, "a repeated message has an index"
        self._put({message: repeated})
        link, parent = history.links[message], history.digest(message)
        self.delta = HistoryDelta(((link, repeated),), None, parent)  # it is the newest form again
        if bypass is not None or history.sent:
            self.bypass, self.num_documents = bypass, len(repeated.documents)
            self.num_dropped = len(repeated.retrieved) - self.num_documents
            return
        context = self._keep_order(repeated)
        self._count(context, before=history.num_bytes(self._body, message))

    def _write_unboosted(self, history: ResentMessages, bypass: Bypass) -> None:
        """Write the documents in the order given, with labels to which later turns may refer."""
        turn = None
        state = history.state if self._conversation is not None else None
        past = CarriedDocuments.of(state, history.carried, has_references=False)
        context = self._as_given(known=past.known, is_complete=past.is_complete)
        if self._booster is not None and state is not None:
            turn = self._booster.add_unboosted(state, context, is_leading=past.is_empty)
        self._write(history, context, turn=turn, is_boosted=False)
        self.bypass, self.num_documents = bypass, len(context.documents)

    def _reorder_in_place(self) -> None:
        """Reorder documents in messages that the client resends with every later turn.

        The shape writes the same history the same way each time, given the order of the first
        documents; a conversation keeps that order even if the index would give another one.
        """
        found, links = self._found, self._request.links
        history = ResentMessages(self._body, self._conversation, links=links, is_in_place=True)
        own = history.sent.get(found.message) if found.message is not None else None
        is_other = own is not None and own.retrieved != found.keys
        others = {at: sent for at, sent in history.sent.items() if at != found.message}
        if is_other or any(sent.adds_documents for sent in others.values()):
            # Earlier turns carry documents in another shape: resend them, leave the rest alone.
            self._put(history.sent)
            self._leave(Bypass("mixed_shapes"), history)
            return
        if not self._request.is_boost_wanted:
            self._keep_history(Bypass("option"), history)
            return
        is_known = found.message is not None and found.message < history.num_known
        if not found.documents or (is_known and own is None):
            self.fields = self._shape.replace(self.fields, found, self._as_given())
            self.num_dropped = found.num_repeated
            self.num_documents = len(found.documents) + found.num_later - found.num_repeated
            self._put(others)
            self._renumber(history)
            self._keep_written(history)
            return
        self.prompt_prefix = self._request.prompt_prefix
        if stays := own is None and (numbers := found.numbering) is not None and numbers.stays:
            own = SentMessage(b"", found.keys, found.keys)
        outcome = self._keep_or_boost(own)
        if isinstance(outcome, Bypass):
            self._keep_history(outcome, history)
            return
        citations = None
        if (numbers := found.numbering) is not None:
            order = order_of(found.documents, outcome.documents)
            citations, self.citations = numbers.moved(order), numbers.answer_map(order)
        self._write(history, outcome, citations=citations)
        self._put(others)
        self._keep_written(history)
        before, after = self._request.bytes_around()
        self._count(outcome, before=before, after=after)
        self.bypass = NUMBERED if stays else None

    def _keep_history(self, bypass: Bypass, history: ResentMessages) -> None:
        """Leave the last message as it came, and send those before it as before."""
        last = len(self._body.messages) - 1
        self._put({at: sent for at, sent in history.sent.items() if at < last})
        self._leave(bypass, history)

    def _reorder_beside_messages(self) -> None:
        """Reorder documents of this request alone; equal ones keep their order over turns."""
        request, body, conversation = self._request, self._body, self._conversation
        inside = request.history(conversation)  # earlier turns with documents in messages
        if not request.is_boost_wanted:
            self._put(inside.sent)
            self._leave(Bypass("option"), inside)
            return
        history = request.history(conversation, is_behind=True)
        self._put({**inside.sent, **history.sent})
        self._renumber(inside)
        earlier = list(history.sent.values())
        if history.repeated is not None:
            earlier.append(history.repeated)
        self.prompt_prefix = request.prompt_prefix
        outcome = self._keep_or_boost(earlier[-1] if earlier else None)
        if isinstance(outcome, Bypass):
            self._leave(outcome, inside)
            return
        self._write(history, outcome)
        self._count(outcome, after=history.num_bytes(body))

    def _keep_or_boost(self, earlier: SentMessage | None) -> Context | Bypass:
        return self._boost(None, {}) if earlier is None else self._keep_order(earlier)

    def _boost(self, state: SessionState | None, carried: Mapping[str, str]) -> Context | Bypass:
        """Boost the documents. Errors that the caller can correct are raised, all others bypass."""
        assert self._booster is not None, "a request that is rendered is not boosted"
        try:
            return self._booster.boost(
                self._found.query,
                self._found.documents,
                session=state,
                history=carried if state is not None else None,
                prompt_prefix=self.prompt_prefix,
                planned=self._planned,
                recompute_ratio=self._ratio,
                note=None if self._shape.is_ours else self._note,
            )
        except RagBoostError as error:
            if self._shape.is_ours and isinstance(error, RequestError):
                raise
            return Bypass.of(error)

    def _note(self, documents: Sequence[Document]) -> str:
        context = Context("", tuple(documents), self._found.documents, positions=(), labels=())
        return self._shape.note(self._body.fields, self._found, context)

    def _keep_order(self, earlier: SentMessage) -> Context:
        """Record documents that are sent as in an earlier request, perhaps to another backend."""
        assert self._booster is not None, "a request that is rendered is not recorded"
        by_key = {document.key: document for document in reversed(self._found.documents)}
        context = self._context(tuple([by_key[key] for key in earlier.documents]))
        entry = self._booster.record(
            context.documents, prompt_prefix=self.prompt_prefix, recompute_ratio=self._ratio
        )
        if not earlier.is_order_hinted:
            context = context.without_order_hint()
        return context.recorded(entry)

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
        history: ResentMessages,
        context: Context,
        *,
        turn: Turn | None = None,
        is_boosted: bool = True,
        citations: CitationMap | None = None,
    ) -> None:
        written = self._shape.replace(self.fields, self._found, context)
        message, name = self._found.message, self._body.list_name
        self.fields, self.delta = written, HistoryDelta(turn=turn)
        if message is None or not history.links:
            return
        value = written[name][message]
        is_original = value is self._body.fields[name][message]
        sent = self._body.encode_bytes(self._body.messages[message] if is_original else value)
        if not is_original:
            messages = list(written[name])
            messages[message] = Raw(sent)
            self.fields = {**written, name: messages}
        labels = context.labels if self._shape.in_message else ()
        keys = _keys(context.retrieved), _keys(context.documents)
        plain, is_hinted = unmarked(sent, self._body), context.is_order_hinted
        kept = SentMessage(plain, *keys, is_boosted, labels, is_hinted, citations)
        if history.sent.get(message) != kept:
            parent = history.digest(message)
            self.delta = HistoryDelta(((history.links[message], kept),), turn, parent)

    def _keep_written(self, history: ResentMessages) -> None:
        """Keep messages with references or other numbers as they are sent, for later turns of
        another shape; those that were sent as they came stay so."""
        name, sent, parent = self._body.list_name, list(self.delta.sent), self.delta.parent
        messages, originals = self.fields.get(name, ()), self._body.fields.get(name, ())
        places = range(len(history.links))
        written = [i for i in places if messages[i] is not originals[i]]
        written = [i for i in written if not isinstance(messages[i], Raw)]
        if written:
            messages = list(messages)
            self.fields = {**self.fields, name: messages}
        for at in written:
            if at < history.num_known:
                messages[at] = originals[at]
                continue
            message = self._body.encode_bytes(messages[at])
            messages[at] = Raw(message)
            parent = parent if sent else history.digest(at)
            sent.append((history.links[at], SentMessage(unmarked(message, self._body), (), ())))
        self.delta = self.delta._replace(sent=tuple(sent), parent=parent)
        self.delta = history.with_last(self.delta)

    def _count(self, context: Context, *, before: int = 0, after: int = 0) -> None:
        """Note what was boosted, and where it is."""
        num, repeated = len(context.documents), self._found.num_repeated
        self.context, self.bytes_before, self.bytes_after = context, before, after
        self.num_documents = num + self._found.num_later - repeated
        self.num_dropped = len(context.retrieved) - num + repeated


def _keys(documents: Sequence[Document]) -> tuple[str, ...]:
    return tuple(map(KEY_OF, documents))
