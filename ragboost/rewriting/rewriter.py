"""Rewrite one request body: resend the history as it was sent, then boost the new documents.

Synchronous, so that a large body can be rewritten in a worker thread. Does not know HTTP.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ragboost.booster.booster import Booster
from ragboost.booster.planning import Planned
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.errors import ContextIndexError, RagBoostError, RequestError
from ragboost.formats import Format, Found, UnknownShapeError, find_format, make_formats
from ragboost.formats.ragboost_object import is_boost_wanted, ragboost_fields, without_object
from ragboost.rewriting.body import JsonBody
from ragboost.rewriting.conversations import Conversation, Link
from ragboost.rewriting.preamble import preamble_of_field, preamble_of_message
from ragboost.rewriting.resent import Resent, find_resent, remember, with_messages
from ragboost.rewriting.unboosted import as_given, in_order
from ragboost.types import Request

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
        preamble: names the text in front of the documents that were boosted.
        bytes_before: of the messages in front of the documents.
        bytes_behind: of the messages behind them, without the one that holds the documents.
    """

    body: Mapping[str, Any]
    context: Context | None = None
    num_documents: int = 0
    num_dropped: int = 0
    bypass: str | None = None
    error: RagBoostError | None = None
    preamble: str = ""
    bytes_before: int = 0
    bytes_behind: int = 0


class Detected(NamedTuple):
    """The documents of a body and their shape, or why there are none to boost."""

    shape: Format | None = None
    found: Found | None = None
    bypass: str | None = None
    error: RagBoostError | None = None


class _Task(NamedTuple):
    """A body with documents to rewrite: see `Rewriter.rewrite`."""

    payload: JsonBody
    shape: Format
    found: Found
    booster: Booster
    conversation: Conversation | None
    planned: Planned | None


class Rewriter:
    """Holds what all requests share: the shapes and the settings."""

    def __init__(self, settings: Settings) -> None:
        self._label_template = settings.hints.label_template
        self._formats = make_formats(settings)

    def detect(self, payload: JsonBody) -> Detected:
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
        payload: JsonBody,
        conversation: Conversation | None,
        *,
        detected: Detected | None = None,
    ) -> Request | None:
        """The documents that will stand first in the payload in an order of our choice, to plan
        with, and the name of the text before them; None if there are none.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        shape, found, *_ = detected or self.detect(payload)
        if shape is None or found is None or not found.documents:
            return None
        if not is_boost_wanted(ragboost_fields(payload.body)):
            return None
        seed = b"" if shape.in_message else _seed(found)
        history = find_resent(payload, conversation, found=found, seed=seed)
        if history.sent or history.repeated is not None:
            return None
        preamble = _preamble(payload, shape, found, history)
        return Request(found.query, found.documents, preamble=preamble)

    def rewrite(
        self,
        payload: JsonBody,
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
            sent = find_resent(payload, conversation).sent
            body = with_messages(without_object(payload.body), sent)
            return Rewritten(body, bypass=detected.bypass, error=detected.error)
        task = _Task(payload, shape, found, booster, conversation, planned)
        if shape.in_place:
            return self._in_place(task)
        if shape.in_message:
            return self._into_message(task, is_plain=is_plain)
        return self._beside_messages(task)

    def _into_message(self, task: _Task, *, is_plain: bool) -> Rewritten:
        """Documents that become part of the question's message and so of every later turn."""
        payload, found = task.payload, task.found
        wanted = not is_plain and is_boost_wanted(ragboost_fields(payload.body))
        history = find_resent(payload, task.conversation, found=found)
        preamble = _preamble(payload, task.shape, found, history)
        body = with_messages(payload.body, history.sent)
        again = history.repeated
        if again is not None and again.retrieved == tuple(d.key for d in found.documents):
            rewritten = self._repeated(task, body, history)
            if not wanted or history.sent:
                return rewritten
            context = self._again(task, again.documents, preamble=preamble)
        else:
            standing = {key for sent in history.sent.values() for key in sent.documents}
            result: Context | Rewritten = Rewritten(body, bypass="option")
            if wanted:
                result = _boost(task, task.conversation, standing=standing, preamble=preamble)
            context = result if isinstance(result, Context) else self._as_given(found)
            body = _write(task, body, history.link, context)
            if isinstance(result, Rewritten):
                return result._replace(body=body, num_documents=len(context.documents))
            rewritten = Rewritten(body)
        before = history.num_bytes(payload, found.message or 0)
        return _boosted(rewritten.body, context, preamble)._replace(bytes_before=before)

    def _repeated(self, task: _Task, body: dict[str, Any], history: Resent) -> Rewritten:
        """A retry, or the next step of an agent that gives the turn's documents each time."""
        again, message = history.repeated, task.found.message
        assert again is not None, "nothing was repeated"
        assert message is not None, "a repeated message has a place"
        num = len(again.documents)
        body = with_messages(without_object(body), {message: again})
        return Rewritten(body, num_documents=num, num_dropped=len(again.retrieved) - num)

    def _in_place(self, task: _Task) -> Rewritten:
        """Documents in messages that the client resends with every later turn.

        The shape writes the same history the same way each time, given the order of the first
        documents; a conversation keeps that order even when the index would give another one.
        """
        payload, found = task.payload, task.found
        body = without_object(payload.body)
        history = find_resent(payload, task.conversation)
        sent = dict(history.sent)
        own = sent.pop(found.message, None) if found.message is not None else None
        keys = tuple([document.key for document in found.documents]) if own is not None else ()
        if sent or (own is not None and own.retrieved != keys):
            # Earlier turns carry documents in another shape: they are resent, the rest passes.
            return Rewritten(with_messages(body, history.sent), bypass="mixed_shapes")
        if not is_boost_wanted(ragboost_fields(payload.body)):
            return Rewritten(body, bypass="option")
        if not found.documents:
            body = task.shape.replace(body, found, self._as_given(found))
            return _with_later(Rewritten(body), found)
        is_linked = history.links and found.message is not None
        link = history.links[found.message or 0] if is_linked else None
        boosted = self._keep_or_boost(task, body, link, own and own.documents, found.preamble)
        if boosted.context is None:
            return boosted
        before, behind = _bytes_around(payload, found)
        return _with_later(boosted._replace(bytes_before=before, bytes_behind=behind), found)

    def _beside_messages(self, task: _Task) -> Rewritten:
        """Documents of this request only. The same ones keep their order over a conversation."""
        payload, conversation, found = task.payload, task.conversation, task.found
        history = find_resent(payload, conversation, found=found, seed=_seed(found))
        inside = find_resent(payload, conversation, found=found)  # earlier turns of the other kind
        body = without_object(payload.body)
        body = with_messages(body, {**inside.sent, **history.sent})
        before = [*history.sent.values(), *([history.repeated] if history.repeated else [])]
        order = before[-1].documents if before else None
        preamble = _preamble(payload, task.shape, found, history)
        boosted = self._keep_or_boost(task, body, history.link, order, preamble)
        if boosted.context is None:
            return boosted
        behind = history.num_bytes(payload, len(payload.messages))
        return boosted._replace(bytes_behind=behind)

    def _keep_or_boost(
        self,
        task: _Task,
        body: dict[str, Any],
        link: Link | None,
        order: tuple[str, ...] | None,
        preamble: str,
    ) -> Rewritten:
        """Put documents into the order that they had before, if any, else into a new one."""
        result: Context | Rewritten
        if order is not None:
            result = self._again(task, order, preamble=preamble)
        else:
            result = _boost(task, None, standing=(), preamble=preamble)
        if isinstance(result, Rewritten):
            return result._replace(body=body)
        return _boosted(_write(task, body, link, result), result, preamble)

    def _again(self, task: _Task, order: tuple[str, ...], *, preamble: str) -> Context:
        """Documents at the front that are sent as before, maybe to another backend."""
        context = in_order(task.found, order, label_template=self._label_template)
        recorded = task.booster.record(context.documents, preamble=preamble)
        return replace(
            context,
            search_path=recorded.search_path,
            predicted_cached_tokens=recorded.cached_tokens,
            index_entry=recorded,
        )

    def _as_given(self, found: Found) -> Context:
        return as_given(found, label_template=self._label_template)


def _seed(found: Found) -> bytes:
    """What stands above the messages of a conversation, for the hashes of its history."""
    return "\n".join(document.key for document in found.documents).encode()


def _preamble(payload: JsonBody, shape: Format, found: Found, history: Resent) -> str:
    """Name the text before the first document of the payload, which may be an earlier turn's."""
    if shape.in_place:
        return found.preamble
    if not shape.in_message:
        return preamble_of_field(payload)
    return preamble_of_message(payload, min(history.sent, default=found.message))


def _boost(
    task: _Task, conversation: Conversation | None, *, standing: Collection[str], preamble: str
) -> Context | Rewritten:
    """Boost, or say why not: the proxy fails open, except for what the caller can mend."""
    found = task.found
    try:
        return task.booster.boost(
            found.query,
            found.documents,
            session=(conversation.state or conversation.key) if conversation else None,
            history=standing if conversation else None,
            preamble=preamble,
            planned=task.planned,
        )
    except RagBoostError as error:
        if task.shape.is_ours and isinstance(error, RequestError):
            raise
        return Rewritten({}, bypass=_reason(error), error=error)


def _write(
    task: _Task, body: dict[str, Any], link: Link | None, context: Context
) -> dict[str, Any]:
    """Put a context into the body, and keep the question's message in the conversation."""
    body = task.shape.replace(body, task.found, context)
    message = task.found.message
    if task.conversation is None or link is None or message is None:
        return body
    return remember(task.payload, body, message, task.conversation, link, context)


def _bytes_around(payload: JsonBody, found: Found) -> tuple[int, int]:
    """Bytes of the messages in front of documents in a message, and of what else is behind; other
    text of their own message counts as behind them."""
    if found.message is None:
        return 0, 0
    sizes = [memoryview(message).nbytes for message in payload.messages]
    inside = sum([_num_bytes(document.text) for document in found.documents])
    return sum(sizes[: found.message]), max(0, sum(sizes[found.message :]) - inside)


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _boosted(body: Mapping[str, Any], context: Context, preamble: str) -> Rewritten:
    num = len(context.documents)
    return Rewritten(body, context, num, len(context.retrieved) - num, preamble=preamble)


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
