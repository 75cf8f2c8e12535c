"""Prepare a request for the backend: parse, find tenant and conversation, rewrite, encode.

The policy around `Rewriter`: what runs on the event loop, what is counted, and the proxy's rule to
fail open. Does not know how requests are sent.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import (
    SESSION_FIELD,
    EngineRequestId,
    TrackedRequest,
    ends_told,
    front_of,
)
from ragboost.cache_sync.usage import Usage
from ragboost.config import Settings
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.proxy.requests import ParsedRequest, Place, UpstreamRequest
from ragboost.proxy.routing.assignment import Assignment
from ragboost.rewriting.body import JsonBody, MalformedBodyError
from ragboost.rewriting.cache_breakpoints import mark_shared
from ragboost.rewriting.chunk_positions import ChunkPositions
from ragboost.rewriting.conversations import Conversation, Conversations, HistoryDelta, SentHistory
from ragboost.rewriting.headers import RawHeaders
from ragboost.rewriting.offload import Stopwatch, call, is_large
from ragboost.rewriting.recognition import Known, Recognition
from ragboost.rewriting.rewriter import Detected, Rewriter, Rewritten
from ragboost.rewriting.session_id import session_name
from ragboost.rewriting.tenants import Tenant, TenantKey, Tenants, user_of
from ragboost.rewriting.tool_results import share_tool_results
from ragboost.types import Request

logger = logging.getLogger(__name__)


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

    payload: JsonBody
    detected: Detected
    can_ask_usage: bool
    name: str | None
    past: SentHistory | None
    tried: SentHistory | None
    tag: EngineRequestId


class BoostPipeline:
    """Everything about boosting that outlives a request."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        tenants: Tenants,
        sync: CacheSync,
        chunks: ChunkPositions,
    ) -> None:
        self._sync = sync
        self._chunks = chunks
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
        self._recognition = Recognition(settings)
        self.recent = RecentRequests()

    async def prepare(
        self,
        raw: bytes,
        headers: RawHeaders,
        *,
        place: Place,
        can_ask_usage: bool = True,
        past: SentHistory | None = None,
    ) -> UpstreamRequest:
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
        clock, in_thread = Stopwatch(), is_large(raw)
        try:
            payload, detected = await call(partial(self._parse, raw), in_thread=in_thread)
        except MalformedBodyError:
            ticket = await clock.without(place(ParsedRequest(raw)))
            return self._finish(UpstreamRequest(ticket, raw, bypass="malformed_body"), clock)
        key, user, known = TenantKey.of(payload.body), user_of(headers), Known()
        session = session_name(payload.body, headers) if past is None else None
        if session is None:
            found = detected.found
            known = await self._recognition.recognise(payload, key, user, found=found, past=past)
        past = known.match.past if known.match else past
        draft = ParsedRequest(raw, payload, history=known.match.digest if known.match else b"")
        if session is None and self._is_plain(payload, detected, past):
            ticket = await clock.without(place(draft))
            plain = UpstreamRequest(ticket, raw, bypass=detected.bypass)
            return self._finish(plain, clock, key=key, known=known)
        tenant, name = self.tenants.get(key), self._name(key, user, session)
        tag, tried = EngineRequestId.of(payload.body, headers), known.tried and known.tried.past
        job = _Job(payload, detected, can_ask_usage, name, past, tried, tag)
        front, session = partial(self._front, job), session and f"{user}/{session}"
        draft = draft._replace(tenant=tenant, front=front, session=session)
        ticket = await clock.without(place(draft))
        work = self._rewrite(job, tenant, ticket)
        # A worker thread cannot be cancelled: the tenant stays locked until it is done, even if the
        # client leaves meanwhile.
        prepared, learned = await (asyncio.shield(work) if in_thread else work)
        is_final = prepared.bypass is None
        known = self._recognition.add(known, prepared.learned, tried=learned, is_final=is_final)
        return self._finish(prepared, clock, key=key, known=known)

    def report_answer(
        self, prepared: UpstreamRequest, answers: Sequence[Mapping[str, Any]]
    ) -> None:
        """Take in the assistant's messages, each of them a way in which the history may go on."""
        self._recognition.answered(prepared.match, prepared.tried, answers)

    async def report_usage(self, prepared: UpstreamRequest, usage: Usage) -> None:
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
        front = followed.front
        cached_tokens = min(max(cached_tokens, 0), usage.prompt_tokens)
        if front is not None:
            prepared.tenant.tokens.correct(front.prompt_tokens, usage.prompt_tokens)
            front = front.corrected(usage.prompt_tokens)
        async with prepared.tenant.lock:
            prepared.tenant.booster(name).report_usage(
                context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=cached_tokens,
                cached_document_tokens=front.cached_documents(cached_tokens) if front else None,
            )

    def answered(
        self, prepared: UpstreamRequest, usage: Usage | None, *, is_computed: bool
    ) -> None:
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
        if context.index_entry is not None and not is_computed:
            followed.follower.failed(followed.name, followed.front, context.index_entry)
            return
        followed.follower.answered(
            followed.name,
            followed.front,
            prompt_tokens=usage and usage.prompt_tokens,
            ends=ends_told(usage, context, prepared.tenant.tokens) if prepared.tenant else None,
        )

    def _parse(self, raw: bytes) -> tuple[JsonBody, Detected]:
        payload = JsonBody.parse(raw)
        return payload, self._rewriter.detect(payload)

    def _is_plain(self, payload: JsonBody, detected: Detected, past: SentHistory | None) -> bool:
        """Tell whether there is nothing to do."""
        has_documents = (
            FIELD in payload.body or detected.found is not None or detected.error is not None
        )
        return not (has_documents or self._settings.dedup.passages or (past and past.sent))

    def _front(self, job: _Job) -> Request | None:
        conversation = self._conversation(job.name, job.past)
        return self._rewriter.front(job.payload, conversation, detected=job.detected)

    async def _rewrite(
        self, job: _Job, tenant: Tenant, ticket: Assignment
    ) -> tuple[UpstreamRequest, HistoryDelta]:
        """Rewrite a body; what it adds to `job.past` is in the result, to `job.tried` beside it."""
        is_shadow = self._settings.proxy.shadow
        follower = self._sync.followers[ticket.backend.name]
        async with tenant.lock:
            conversation = self._conversation(job.name, job.past)
            tried = self._conversation(job.name and f"shadow/{job.name}", job.tried)

            def work() -> UpstreamRequest:
                if is_shadow:
                    rewritten = self._shadow(job, tenant, ticket, conversation, tried)
                else:
                    rewritten = self._boost(job, tenant, ticket, conversation)
                rewritten = self._marked(rewritten)
                body, is_usage_added = rewritten.body, False
                if job.can_ask_usage:
                    body, is_usage_added = self._with_usage(rewritten)
                    body = self._with_chunks(body, job, rewritten)
                    if follower.streams and job.tag.is_ours and rewritten.context is not None:
                        body = {**body, SESSION_FIELD: job.tag.name}
                return UpstreamRequest(
                    ticket,
                    job.payload.encode(body),
                    rewritten=rewritten,
                    tenant=tenant,
                    is_usage_added=is_usage_added,
                    bypass=rewritten.bypass,
                    learned=_learned(conversation, job.past),
                )

            prepared = await call(work, in_thread=is_large(job.payload.raw))
            if job.name is not None:
                for used in (conversation, tried if is_shadow else None):
                    if used is not None and used.sent:
                        self.conversations.put(used)
            if prepared.rewritten is not None:
                followed = _follow(follower, tenant, prepared.rewritten, tag=job.tag)
                prepared = prepared._replace(followed=followed)
            return prepared, _learned(tried, job.tried)

    def _boost(
        self, job: _Job, tenant: Tenant, ticket: Assignment, conversation: Conversation | None
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
        ticket: Assignment,
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
            self._metrics.count_shadow(rewritten.context, original, preamble=rewritten.preamble)
        plain = self._rewriter.rewrite(
            job.payload, booster, conversation, detected=job.detected, is_plain=True
        )
        return plain._replace(bypass="shadow", context=None)

    def _conversation(self, name: str | None, past: SentHistory | None) -> Conversation | None:
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

    def _marked(self, rewritten: Rewritten) -> Rewritten:
        """Mark what is shared, for a hosted API that wants to be told."""
        context, style = rewritten.context, self._settings.backend.cache_marks
        if context is None or style == "none":
            return rewritten
        return rewritten._replace(body=mark_shared(rewritten.body, context, style=style))

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

    def _with_chunks(
        self, body: Mapping[str, Any], job: _Job, rewritten: Rewritten
    ) -> Mapping[str, Any]:
        if not self._chunks.is_told:
            return body
        found, asked = job.detected.found, ragboost_fields(job.payload.body).get("reuse")
        message = found.message if found is not None else None
        return self._chunks.add(body, rewritten.context, message=message, asked=asked)

    def _finish(
        self,
        prepared: UpstreamRequest,
        clock: Stopwatch,
        *,
        key: TenantKey = TenantKey("", ""),  # noqa: B008  # a constant
        known: Known = Known(),  # noqa: B008
    ) -> UpstreamRequest:
        seconds = clock.seconds
        self._metrics.observe_overhead("boost", seconds=seconds)
        if prepared.bypass is not None:
            self._metrics.count_bypass(prepared.bypass)
            self._log_once(prepared.bypass, prepared.rewritten)
        elif prepared.context is not None:
            self._metrics.count_context(prepared.context)
        return prepared._replace(
            model=key.model, match=known.match, tried=known.tried, seconds=seconds
        )

    def _log_once(self, reason: str, rewritten: Rewritten | None) -> None:
        error = rewritten.error if rewritten else None
        if error is None or reason in self._logged:
            return
        self._logged.add(reason)
        logger.warning("forwarding without boosting (%s, logged once): %s", reason, error)


def _learned(conversation: Conversation | None, past: SentHistory | None) -> HistoryDelta:
    return conversation.learned(past) if conversation and past is not None else HistoryDelta()


def _follow(
    follower: CacheFollower, tenant: Tenant, rewritten: Rewritten, *, tag: EngineRequestId
) -> TrackedRequest | None:
    """Note a boosted request as sent, if something was boosted."""
    context = rewritten.context
    if context is None:
        return None
    front = None
    if context.index_entry is not None:
        front = front_of(
            context,
            tenant.key,
            bytes_before=rewritten.bytes_before,
            bytes_behind=rewritten.bytes_behind,
            is_measured=tenant.booster(follower.name).is_measured(context),
            tokens=tenant.tokens,
        )
        cached = context.predicted_cached_tokens
        front = follower.sent(tag.name if follower.streams else None, front, cached_tokens=cached)
    predicted = follower.predict(front, context.predicted_cached_tokens)
    return TrackedRequest(follower, front, tag if follower.streams else None, predicted)
