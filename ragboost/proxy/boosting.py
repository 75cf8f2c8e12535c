"""Prepare a request for the backend: parse, find tenant and conversation, rewrite, encode.

The policy around `Rewriter`: what runs on the event loop, what is counted, and the proxy's rule to
fail open. Does not know how requests are sent.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from ragboost.config import Settings
from ragboost.engine_hooks.usage import Usage
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.proxy.conversation import Conversation, Conversations, Learned, Past
from ragboost.proxy.follower import Follower
from ragboost.proxy.following import SESSION_FIELD, Followed, Tag, front_of
from ragboost.proxy.headers import RawHeaders
from ragboost.proxy.histories import Histories, Match, history_links
from ragboost.proxy.metrics import Metrics
from ragboost.proxy.payload import MalformedBodyError, Payload
from ragboost.proxy.prepared import Draft, Place, Prepared
from ragboost.proxy.rewrite import Detected, Rewriter, Rewritten
from ragboost.proxy.session_names import session_name
from ragboost.proxy.sync import CacheSync
from ragboost.proxy.tenants import Tenant, TenantKey, Tenants, user_of
from ragboost.proxy.tickets import Ticket
from ragboost.proxy.tool_results import share_tool_results
from ragboost.types import Request

logger = logging.getLogger(__name__)

# Larger bodies are rewritten in a worker thread: below this, handing over costs more than it frees.
_THREAD_BYTES = 256 * 1024
_END_USER = ("user", "safety_identifier")

T = TypeVar("T")


class _Job(NamedTuple):
    """A body to rewrite, with what its request says about it.

    Attributes:
        payload: the body.
        detected: its documents.
        can_ask_usage: the endpoint knows `stream_options.include_usage`.
        name: of its conversation, over all tenants; None: it is known by its past, or not at all.
        past: what the engine was sent for its history, or None.
        tried: what it would have been sent without shadow mode, or None.
        tag: the id by which its engine is to call it in its events.
    """

    payload: Payload
    detected: Detected
    can_ask_usage: bool
    name: str | None
    past: Past | None
    tried: Past | None
    tag: Tag


class _Known(NamedTuple):
    """What is known of a history that has no name: see Prepared.

    Attributes:
        match: of what was sent.
        tried: of what shadow mode would have sent.
        apart: the documents that the request gives beside its messages.
    """

    match: Match | None = None
    tried: Match | None = None
    apart: bytes = b""


class Boosting:
    """Everything about boosting that outlives a request."""

    def __init__(
        self, settings: Settings, metrics: Metrics, *, tenants: Tenants, sync: CacheSync
    ) -> None:
        self._sync = sync
        self._settings = settings
        self._metrics = metrics
        self._rewriter = Rewriter(settings)
        self._logged: set[str] = set()
        self.tenants = tenants
        self.conversations = Conversations(
            max_sessions=settings.session.max_sessions,
            max_bytes=settings.session.max_bytes,
            ttl_s=settings.session.ttl_s,
        )
        self.histories = _histories(settings)
        # What shadow mode would have sent is remembered apart from what was sent.
        self._tried = _histories(settings) if settings.proxy.shadow else None

    async def prepare(
        self,
        raw: bytes,
        headers: RawHeaders,
        *,
        place: Place,
        can_ask_usage: bool = True,
        past: Past | None = None,
    ) -> Prepared:
        """Boost a body for the backend that it is given, or pass it on as it is.

        Args:
            raw: the client's body.
            headers: the client's.
            place: gives it its backend.
            can_ask_usage: the endpoint knows `stream_options.include_usage`.
            past: what the engine was sent for the history in `messages`, where the caller keeps it;
                None: the body or the headers name a conversation, or it is recognised.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        started = time.perf_counter()
        is_large = len(raw) > _THREAD_BYTES
        try:
            payload, detected = await _call(lambda: self._parse(raw), in_thread=is_large)
        except MalformedBodyError:
            ticket = await place(Draft(raw))
            return self._finish(Prepared(ticket, raw, bypass="malformed_body"), time.perf_counter())
        key, user = TenantKey.of(payload.body), user_of(headers)
        session = session_name(payload.body, headers) if past is None else None
        known = _Known()
        if session is None:
            known = await self._recognise(payload, key, user, past=past)
        match, tried, apart = known.match, known.tried, known.apart
        past = match.past if match else past
        draft = Draft(raw, payload, history=match.digest if match else b"")
        if session is None and self._is_plain(payload, detected, past):
            spent = time.perf_counter() - started
            ticket = await place(draft)
            plain = Prepared(
                ticket, raw, key.model, bypass=detected.bypass, match=match, tried=tried
            )
            return self._finish(plain, time.perf_counter() - spent)
        tenant = self.tenants.get(key)
        name = self._name(key, user, session)
        tag = Tag.of(payload.body, headers)
        job = _Job(payload, detected, can_ask_usage, name, past, tried and tried.past, tag)
        front = partial(self._front, job)
        spent = time.perf_counter() - started
        ticket = await place(
            draft._replace(tenant=tenant, front=front, session=session and f"{user}/{session}")
        )
        started = time.perf_counter() - spent
        work = self._rewrite(job, tenant, ticket)
        # A worker thread cannot be cancelled: the tenant stays locked until it is done, even if the
        # client leaves meanwhile.
        prepared, learned = await (asyncio.shield(work) if is_large else work)
        if match is not None:
            is_final = prepared.bypass is None
            digest = self.histories.add(match, prepared.learned, apart=apart, is_final=is_final)
            match = match._replace(digest=digest)
        if tried is not None and self._tried is not None:
            tried = tried._replace(digest=self._tried.add(tried, learned, apart=apart))
        return self._finish(prepared._replace(model=key.model, match=match, tried=tried), started)

    def report_answer(self, prepared: Prepared, answers: Sequence[Mapping[str, Any]]) -> None:
        """Take in the assistant's messages, each of them a way in which the history may go on."""
        if prepared.match is not None:
            self.histories.answered(prepared.match, answers)
        if prepared.tried is not None and self._tried is not None:
            self._tried.answered(prepared.tried, answers)

    async def report_usage(self, prepared: Prepared, usage: Usage) -> None:
        """Take in what the backend reported for a request."""
        self._metrics.count_usage(usage)
        followed, context, cached_tokens = prepared.followed, prepared.context, usage.cached_tokens
        if followed is None or prepared.tenant is None or context is None or cached_tokens is None:
            return
        name = prepared.ticket.backend.name
        if name != followed.follower.name:
            return  # it went to another backend in the end, of which nothing was predicted
        error = self._sync.fidelity.record(
            predicted=followed.predicted_tokens,
            reported=cached_tokens,
            prompt_tokens=usage.prompt_tokens,
        )
        self._metrics.observe_prediction(error, self._sync.fidelity.read())
        async with prepared.tenant.lock:
            prepared.tenant.booster(name).report_usage(
                context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=min(max(cached_tokens, 0), usage.prompt_tokens),
            )

    def answered(self, prepared: Prepared, usage: Usage | None, *, is_computed: bool) -> None:
        """A request is over.

        Args:
            prepared: the request.
            usage: what the backend reported, or None.
            is_computed: the backend answered it.
        """
        followed, context = prepared.followed, prepared.context
        if followed is None or followed.front is None or context is None:
            return
        is_computed = is_computed and prepared.ticket.backend.name == followed.follower.name
        if context.recorded is not None and not is_computed:
            followed.follower.failed(followed.name, followed.front, context.recorded)
            return
        prompt_tokens = usage and usage.prompt_tokens
        followed.follower.answered(followed.name, followed.front, prompt_tokens=prompt_tokens)

    def _parse(self, raw: bytes) -> tuple[Payload, Detected]:
        payload = Payload.parse(raw)
        return payload, self._rewriter.detect(payload)

    async def _recognise(
        self, payload: Payload, key: TenantKey, user: str, *, past: Past | None
    ) -> _Known:
        """Recognise the history of a request that names no conversation. If the caller keeps it,
        only what shadow mode would have sent for it is looked for."""
        is_wanted = self._settings.session.stateless if past is None else self._tried is not None
        if not is_wanted or not payload.messages:
            return _Known()
        # An application's users may share its credentials: what tells them apart counts as well.
        parts = [user, *key, *(str(payload.body.get(name, "")) for name in _END_USER)]
        scope = "".join(f"{len(part)}:{part}" for part in parts).encode("utf-8", "surrogatepass")
        links = await _call(
            lambda: history_links(payload.body["messages"], payload.message_digests, scope=scope),
            in_thread=len(payload.raw) > _THREAD_BYTES,
        )
        apart = _documents_apart(payload)
        match = self.histories.match(links, apart=apart) if past is None else None
        tried = self._tried.match(links, apart=apart) if self._tried is not None else None
        return _Known(match, tried, apart)

    def _is_plain(self, payload: Payload, detected: Detected, past: Past | None) -> bool:
        """Tell whether there is nothing to do."""
        has_documents = (
            FIELD in payload.body or detected.found is not None or detected.error is not None
        )
        return not (has_documents or self._settings.dedup.passages or (past and past.sent))

    def _front(self, job: _Job) -> Request | None:
        conversation = self._conversation(job.name, job.past)
        return self._rewriter.front(job.payload, conversation, detected=job.detected)

    async def _rewrite(self, job: _Job, tenant: Tenant, ticket: Ticket) -> tuple[Prepared, Learned]:
        """Rewrite a body; what it adds to `job.past` is in the result, to `job.tried` beside it."""
        is_shadow = self._settings.proxy.shadow
        follower = self._sync.followers[ticket.backend.name]
        async with tenant.lock:
            conversation = self._conversation(job.name, job.past)
            tried = self._conversation(job.name and f"shadow/{job.name}", job.tried)

            def work() -> Prepared:
                if is_shadow:
                    rewritten = self._shadow(job, tenant, ticket, conversation, tried)
                else:
                    rewritten = self._boost(job, tenant, ticket, conversation)
                body, is_usage_added = rewritten.body, False
                if job.can_ask_usage:
                    body, is_usage_added = self._with_usage(rewritten)
                    if follower.streams and job.tag.is_ours and rewritten.context is not None:
                        body = {**body, SESSION_FIELD: job.tag.name}
                return Prepared(
                    ticket,
                    job.payload.encode(body),
                    rewritten=rewritten,
                    tenant=tenant,
                    is_usage_added=is_usage_added,
                    bypass=rewritten.bypass,
                    learned=_learned(conversation, job.past),
                )

            prepared = await _call(work, in_thread=len(job.payload.raw) > _THREAD_BYTES)
            if job.name is not None:
                for used in (conversation, tried if is_shadow else None):
                    if used is not None and used.sent:
                        self.conversations.put(used)
            if prepared.rewritten is not None:
                followed = _follow(follower, tenant, prepared.rewritten, tag=job.tag)
                prepared = prepared._replace(followed=followed)
            return prepared, _learned(tried, job.tried)

    def _boost(
        self, job: _Job, tenant: Tenant, ticket: Ticket, conversation: Conversation | None
    ) -> Rewritten:
        rewritten = self._rewriter.rewrite(
            job.payload,
            tenant.booster(ticket.backend.name),
            conversation,
            detected=job.detected,
            planned=ticket.planned,
        )
        return self._share_passages(rewritten) if self._settings.dedup.passages else rewritten

    def _shadow(
        self,
        job: _Job,
        tenant: Tenant,
        ticket: Ticket,
        conversation: Conversation | None,
        tried: Conversation | None,
    ) -> Rewritten:
        """Count what boosting would do, and leave the request as it was given."""
        backend, found = ticket.backend.name, job.detected.found
        booster = tenant.booster(backend)
        rewritten = self._rewriter.rewrite(
            job.payload, booster, tried, detected=job.detected, planned=ticket.planned
        )
        if rewritten.context is not None and found is not None:
            original = tenant.original(backend)
            self._metrics.count_shadow(rewritten.context, original, preamble=found.preamble)
        plain = self._rewriter.rewrite(
            job.payload, booster, conversation, detected=job.detected, is_plain=True
        )
        return plain._replace(bypass="shadow", context=None)

    def _conversation(self, name: str | None, past: Past | None) -> Conversation | None:
        if past is not None:
            return Conversation.after(past)
        return self.conversations.get(name) if name is not None else None

    @staticmethod
    def _name(key: TenantKey, user: str, session: str | None) -> str | None:
        if session is None:
            return None
        return (
            f"{user}/{len(key.model)}:{key.model}/{len(key.cache_salt)}:{key.cache_salt}/{session}"
        )

    def _share_passages(self, rewritten: Rewritten) -> Rewritten:
        messages = rewritten.body.get("messages")
        if not isinstance(messages, list):
            return rewritten
        shared = share_tool_results(messages, settings=self._settings.dedup)
        if not shared.saved_bytes:
            return rewritten
        self._metrics.count_passages(shared.saved_bytes)
        return rewritten._replace(body={**rewritten.body, "messages": shared.messages})

    def _with_usage(self, rewritten: Rewritten) -> tuple[Mapping[str, Any], bool]:
        """Ask for the usage of a boosted stream where the caller did not."""
        body = rewritten.body
        options = body.get("stream_options") or {}
        if (
            rewritten.context is None
            or not self._settings.proxy.stream_usage
            or body.get("stream") is not True
            or not isinstance(options, dict)
            or options.get("include_usage")
        ):
            return body, False
        return {**body, "stream_options": {**options, "include_usage": True}}, True

    def _finish(self, prepared: Prepared, started: float) -> Prepared:
        seconds = time.perf_counter() - started
        self._metrics.observe_overhead("boost", seconds=seconds)
        if prepared.bypass is not None:
            self._metrics.count_bypass(prepared.bypass)
            self._log_once(prepared.bypass, prepared.rewritten)
        elif prepared.context is not None:
            self._metrics.count_context(prepared.context)
        return prepared._replace(seconds=seconds)

    def _log_once(self, reason: str, rewritten: Rewritten | None) -> None:
        error = rewritten.error if rewritten else None
        if error is None or reason in self._logged:
            return
        self._logged.add(reason)
        logger.warning("forwarding without boosting (%s, logged once): %s", reason, error)


async def _call(work: Callable[[], T], *, in_thread: bool) -> T:
    return await asyncio.to_thread(work) if in_thread else work()


def _learned(conversation: Conversation | None, past: Past | None) -> Learned:
    return conversation.learned(past) if conversation and past is not None else Learned()


def _histories(settings: Settings) -> Histories:
    return Histories(
        max_sessions=settings.session.max_sessions,
        max_bytes=settings.session.max_bytes,
        ttl_s=settings.session.ttl_s,
    )


def _documents_apart(payload: Payload) -> bytes:
    """The documents that are given beside the messages and rendered into them."""
    return payload.field(FIELD) if ragboost_fields(payload.body).get("documents") else b""


def _follow(
    follower: Follower, tenant: Tenant, rewritten: Rewritten, *, tag: Tag
) -> Followed | None:
    """Note a boosted request as sent, if something was boosted."""
    context = rewritten.context
    if context is None:
        return None
    front = None
    if context.recorded is not None:
        front = front_of(
            context,
            tenant.key,
            bytes_before=rewritten.bytes_before,
            bytes_behind=rewritten.bytes_behind,
        )
        cached = context.predicted_cached_tokens
        front = follower.sent(tag.name if follower.streams else None, front, cached_tokens=cached)
    predicted = follower.predict(front, context.predicted_cached_tokens)
    return Followed(follower, front, tag if follower.streams else None, predicted)
