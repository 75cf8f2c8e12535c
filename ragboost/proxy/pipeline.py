"""Prepare a completion request for its backend: parse, route, rewrite, encode.

The policy around the rewriter: what runs in a thread, what is counted, and the rule to forward the
original body when boosting fails. Does not know how requests are sent.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import (
    SESSION_FIELD,
    SESSION_HEADER,
    EngineRequestId,
    TrackedRequest,
    exact_ends,
)
from ragboost.cache_sync.usage import Usage
from ragboost.config import Settings
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.hosted.cache_marks import CacheMarker
from ragboost.hosted.stable_order import StableOrder
from ragboost.proxy.asgi.headers import request_headers, with_header
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.recent_requests import RecentRequests
from ragboost.proxy.offload import Stopwatch, call, is_large
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.assignment import Assignment
from ragboost.proxy.upstream.backends import Backend
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.request import UpstreamRequest
from ragboost.proxy.workers.worker_pool import WorkerPool
from ragboost.rewriting.chunk_positions import add_chunks
from ragboost.rewriting.headers import RawHeaders
from ragboost.rewriting.json_body import MalformedBodyError
from ragboost.rewriting.names import printable
from ragboost.rewriting.parsed_request import Bypass, ParsedRequest, RequestParser
from ragboost.rewriting.recognition import ChainMatch, Histories
from ragboost.rewriting.rewriter import BoostResult, Rewriter
from ragboost.rewriting.sent_history import UNCHANGED, Conversation, Conversations, Digest
from ragboost.rewriting.tenants import Tenant, Tenants
from ragboost.rewriting.tool_results import share_tool_results
from ragboost.types import Request

logger = logging.getLogger(__name__)

_THREAD_DOCUMENTS = 1000  # boosting so many takes about 10 ms


class BoostedRequest(NamedTuple):
    """A body to send, rewritten or not; the other attributes as in `UpstreamRequest`."""

    body: bytes
    result: BoostResult | None = None
    is_usage_added: bool = False
    tracked: TrackedRequest | None = None
    dropped_tokens: int = 0


class BoostPipeline:
    """Boost the requests of one app.

    Attributes:
        tenants: the context indexes.
        conversations: those with a name.
        recent: the last requests, for the dashboard.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        tenants: Tenants,
        sync: CacheSync,
        chunk_reuse: ChunkReuseProbe,
        workers: WorkerPool | None = None,
    ) -> None:
        self.tenants = tenants
        self.conversations = Conversations(settings.session)
        self.recent = RecentRequests()
        self._settings = settings
        self._metrics = metrics
        self._sync = sync
        self._chunk_reuse = chunk_reuse
        self._workers = workers
        self._parser = RequestParser(settings)
        self._rewriter = Rewriter(settings)
        style = settings.backend.cache_marks
        has_marks = style != "none" and not settings.proxy.shadow
        self._marker = CacheMarker(style, settings.prices) if has_marks else None
        is_stable = settings.stable.enabled and not settings.proxy.shadow
        self._stable = StableOrder(settings.stable) if is_stable else None
        self._histories = Histories(settings.session)
        self._logged: set[str] = set()

    async def prepare(
        self,
        raw: bytes,
        headers: RawHeaders,
        admission: Admission,
        *,
        has_stream_options: bool = True,
        session: str | None = None,
        history: Conversation | None = None,
        team: str = "",
        may_hand_over: bool = True,
    ) -> UpstreamRequest:
        """Boost a request for the backend that it is assigned to, or forward its body unchanged.

        A request whose conversation another worker keeps is returned as it came, with that worker.

        Args:
            raw, headers: the client's.
            admission: assigns the request to a backend.
            has_stream_options: the endpoint knows `stream_options.include_usage`.
            session: unique name of the conversation, for a caller that keeps `history`; None: the
                request names its conversation, or it is recognised.
            history: what the engine was sent for the earlier messages; not kept here.
            team: of the client's API key.
            may_hand_over: it may go to another worker.

        Raises:
            RequestError: the `ragboost` object is malformed.
        """
        clock = Stopwatch()
        raw = await self._in_stable_order(raw)
        parse = partial(self._parser.parse, raw, headers, session=session, team=team)
        try:
            request = await call(parse, in_thread=is_large(raw))
        except MalformedBodyError:
            return await self._forward_malformed(raw, headers, admission, clock)
        match = self._histories.match(request.claim) if request.claim is not None else None
        if may_hand_over and history is None:
            worker = self._worker_of(request, headers)
            if worker is not None and self._workers is not None:
                return UpstreamRequest(raw, self._workers.handed_over(headers), worker=worker)
        digest = match.digest if match is not None else UNCHANGED
        conversation = match.conversation if match is not None else history
        take = partial(admission.take, request, history=digest)
        tenant, boosted = None, BoostedRequest(raw)
        if self._is_plain(request, conversation):
            await clock.without(take())
        else:
            tenant = self.tenants.get(request.tenant_key)
            plan = partial(self._plan, request, conversation)
            assignment = await clock.without(take(tenant=tenant, plan=plan))
            boosted = await self._boost_shielded(
                request, conversation, tenant, assignment, headers, has_options=has_stream_options
            )
            if match is not None and boosted.result is not None:
                digest = self._remember(match, boosted.result)
        is_read = history is not None
        return self._upstream(
            request, headers, boosted, tenant, digest, is_read=is_read, seconds=clock.seconds
        )

    async def _in_stable_order(self, raw: bytes) -> bytes:
        if self._stable is None:
            return raw
        return await call(partial(self._stable.apply, raw), in_thread=is_large(raw))

    def _worker_of(self, request: ParsedRequest, headers: RawHeaders) -> Backend | None:
        """Return the other worker that keeps a request's conversation, if there is one."""
        workers = self._workers
        if workers is None or workers.has_handed_over(headers):
            return None
        if request.session is not None:
            return workers.owner(request.session)
        for link in reversed(request.claim.links[:-1] if request.claim is not None else ()):
            if self._histories.keeps(link):
                return None
            if (worker := workers.keeper(link)) is not None:
                return worker
        return None

    def _remember(self, match: ChainMatch, result: BoostResult) -> Digest:
        """Keep what a message of a conversation without a name became, and tell other workers."""
        if self._workers is not None and result.delta.sent:
            self._workers.keep(match.claim.links[-1])
        return self._histories.add(match, result.delta)

    async def _forward_malformed(
        self, raw: bytes, headers: RawHeaders, admission: Admission, clock: Stopwatch
    ) -> UpstreamRequest:
        """Forward a body that is not a JSON object: the backend reports the error."""
        await clock.without(admission.take_unparsed(len(raw)))
        sent, bypass = request_headers(headers), Bypass("malformed_body")
        return self._count(UpstreamRequest(raw, sent, bypass=bypass, seconds=clock.seconds))

    async def report_usage(self, upstream: UpstreamRequest, usage: Usage, *, backend: str) -> None:
        """Learn from the usage that a backend reported for a request."""
        self._metrics.count_usage(usage)
        tracked, context, cached_tokens = upstream.tracked, upstream.context, usage.cached_tokens
        if tracked is None or upstream.tenant is None or context is None or cached_tokens is None:
            return
        if backend != tracked.follower.name:
            return  # it failed over to a backend for which nothing was predicted
        error = self._sync.fidelity.record(
            predicted=tracked.predicted_tokens,
            reported=cached_tokens,
            prompt_tokens=usage.prompt_tokens,
        )
        self._metrics.observe_prediction(error, self._sync.fidelity.read())
        layout = tracked.layout
        cached_tokens = min(max(cached_tokens, 0), usage.prompt_tokens)
        if layout is not None:
            upstream.tenant.tokens.correct(layout.prompt_tokens, usage.prompt_tokens)
            layout = layout.corrected(usage.prompt_tokens)
        async with upstream.tenant.lock:
            upstream.tenant.booster(backend).report_usage(
                context,
                prompt_tokens=usage.prompt_tokens,
                cached_tokens=cached_tokens,
                cached_document_tokens=layout.cached_documents(cached_tokens) if layout else None,
            )

    def report_end(
        self, upstream: UpstreamRequest, usage: Usage | None, *, backend: str, is_computed: bool
    ) -> None:
        """Tell the backend's follower that a request has ended.

        Args:
            upstream: the request.
            usage: reported by the backend, or None.
            backend: the one that it was sent to last.
            is_computed: the backend answered it.
        """
        tracked, context = upstream.tracked, upstream.context
        if tracked is None or tracked.layout is None or context is None:
            return
        is_computed = is_computed and backend == tracked.follower.name
        if context.index_entry is not None and not is_computed:
            tracked.follower.on_failure(tracked.name, tracked.layout, context.index_entry)
            return
        tokens = upstream.tenant.tokens if upstream.tenant is not None else None
        tracked.follower.on_response(
            tracked.name,
            tracked.layout,
            prompt_tokens=usage and usage.prompt_tokens,
            ends=exact_ends(usage, context, tokens) if tokens is not None else None,
        )

    def _is_plain(self, request: ParsedRequest, conversation: Conversation | None) -> bool:
        """Return True if there is nothing to rewrite, so that the body is forwarded as it came."""
        if conversation is None and request.session is not None:
            return False  # what was sent for a named conversation is read under the tenant's lock
        has_documents = (
            request.found is not None
            or FIELD in request.body.fields
            or (request.bypass is not None and request.bypass.error is not None)
        )
        has_history = conversation is not None and bool(conversation.forms)
        is_marked = self._marker is not None
        return not (has_documents or has_history or is_marked or self._settings.dedup.passages)

    def _plan(self, request: ParsedRequest, conversation: Conversation | None) -> Request | None:
        if conversation is None and request.session is not None:
            conversation = self.conversations.get(request.session)
        return self._rewriter.plan(request, conversation)

    async def _boost_shielded(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        assignment: Assignment,
        headers: RawHeaders,
        *,
        has_options: bool,
    ) -> BoostedRequest:
        """Boost a request; work in a thread goes on to its end even if the client leaves.

        A worker thread cannot be cancelled: the tenant stays locked until it is done.
        """
        engine_id = None
        if self._sync.followers[assignment.backend.name].streams:
            engine_id = EngineRequestId.of(request.body.fields, headers)
        work = self._boost(
            request, conversation, tenant, assignment, engine_id, has_options=has_options
        )
        return await (asyncio.shield(work) if needs_thread(request) else work)

    async def _boost(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        assignment: Assignment,
        engine_id: EngineRequestId | None,
        *,
        has_options: bool,
    ) -> BoostedRequest:
        """Rewrite and encode a request, and keep what it adds to a named conversation.

        The tenant is locked only while its index is used: other requests of its model wait for it.
        """
        follower = self._sync.followers[assignment.backend.name]
        is_named = conversation is None and request.session is not None
        in_thread = needs_thread(request)
        if in_thread and request.found is not None:  # so that the lengths are known under the lock
            await call(
                partial(tenant.tokens.count_documents, request.found.documents), in_thread=True
            )
        async with tenant.lock:
            if is_named and request.session is not None:
                conversation = self.conversations.get(request.session)
            rewrite = partial(self._rewrite, request, conversation, tenant, assignment)
            result = await call(rewrite, in_thread=in_thread)
            if is_named and conversation is not None:
                self.conversations.add(conversation, result.delta)
            tracked = _track(follower, tenant, result, engine_id=engine_id)

        def encode() -> BoostedRequest:
            fields, is_usage_added = self._complete(
                request,
                result,
                has_options=has_options,
                is_hosted=not follower.streams,
                tokens_per_byte=tenant.tokens.tokens_per_byte,
            )
            named = engine_id if has_options and result.context is not None else None
            if named is not None and named.is_generated:
                fields = {**fields, SESSION_FIELD: named.name}
            body, dropped = request.body.encode(fields), _dropped_tokens(tenant, result)
            return BoostedRequest(body, result, is_usage_added, tracked, dropped)

        return await call(encode, in_thread=in_thread)

    def _rewrite(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        assignment: Assignment,
    ) -> BoostResult:
        booster = tenant.booster(assignment.backend.name)
        return self._rewriter.rewrite(request, booster, conversation, planned=assignment.planned)

    def _share_passages(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        name = "messages" if isinstance(fields.get("messages"), list) else "input"
        messages = fields.get(name)
        # With a conversation stored at the backend, results are numbered from an unknown number on.
        is_stored = fields.get("previous_response_id") or fields.get("conversation")
        if not self._settings.dedup.passages or not isinstance(messages, list) or is_stored:
            return fields
        shared = share_tool_results(messages, settings=self._settings.dedup)
        if not shared.saved_bytes:
            return fields
        self._metrics.count_passages(shared.saved_bytes)
        return {**fields, name: shared.messages}

    def _complete(
        self,
        request: ParsedRequest,
        result: BoostResult,
        *,
        has_options: bool,
        is_hosted: bool,
        tokens_per_byte: float,
    ) -> tuple[Mapping[str, Any], bool]:
        """Return the fields to send, and whether the proxy asked for usage in them."""
        fields, context = self._share_passages(result.fields), result.context
        if self._marker is not None and is_hosted:
            fields = self._marker.mark(
                fields, context, tenant=request.tenant_key, tokens_per_byte=tokens_per_byte
            )
        if not has_options:
            return fields, False
        is_usage_added = context is not None and self._lacks_usage(fields)
        if is_usage_added:
            options = fields.get("stream_options") or {}
            fields = {**fields, "stream_options": {**options, "include_usage": True}}
        if self._chunk_reuse.is_supported:
            message = request.found.message if request.found is not None else None
            reuse = ragboost_fields(request.body.fields).get("reuse")
            team = request.tenant_key.team
            fields = add_chunks(fields, context, message=message, reuse=reuse, tenant=team)
        return fields, is_usage_added

    def _lacks_usage(self, fields: Mapping[str, Any]) -> bool:
        """Return True for a stream that would not report its usage, if it can be asked to."""
        options = fields.get("stream_options") or {}
        return (
            self._settings.proxy.stream_usage
            and fields.get("stream") is True
            and isinstance(options, dict)
            and not options.get("include_usage")
        )

    def _upstream(
        self,
        request: ParsedRequest,
        headers: RawHeaders,
        boosted: BoostedRequest,
        tenant: Tenant | None,
        digest: Digest,
        *,
        is_read: bool,
        seconds: float,
    ) -> UpstreamRequest:
        result, tracked = boosted.result, boosted.tracked
        is_read = is_read or (result is not None and result.context is not None)
        is_read = is_read or self._settings.proxy.receipts
        sent = request_headers(headers, is_read=is_read)
        if tracked is not None and tracked.engine_id is not None and tracked.engine_id.is_generated:
            sent = with_header(sent, SESSION_HEADER, tracked.engine_id.name.encode())
        upstream = UpstreamRequest(
            boosted.body,
            sent,
            request.tenant_key.model,
            bypass=request.bypass if result is None else result.bypass,
            result=result,
            tenant=tenant,
            tracked=tracked,
            history=digest,
            is_usage_added=boosted.is_usage_added,
            seconds=seconds,
            dropped_tokens=boosted.dropped_tokens,
        )
        return self._count(upstream)

    def _count(self, upstream: UpstreamRequest) -> UpstreamRequest:
        self._metrics.observe_overhead("boost", seconds=upstream.seconds or 0.0)
        if upstream.bypass is not None:
            reason, error = upstream.bypass
            self._metrics.count_bypass(reason)
            if error is not None and reason not in self._logged:
                self._logged.add(reason)
                shown = printable(str(error))
                logger.warning("forwarding without boosting (%s, logged once): %s", reason, shown)
        elif upstream.context is not None:
            self._metrics.count_context(upstream.context)
        return upstream


def needs_thread(request: ParsedRequest) -> bool:
    """Return True if boosting a request takes too long for the event loop."""
    num = len(request.found.documents) if request.found is not None else 0
    return num > _THREAD_DOCUMENTS or is_large(request.body.raw)


def _dropped_tokens(tenant: Tenant, result: BoostResult) -> int:
    """Count the tokens of documents that were given and not sent."""
    context = result.context
    if context is None or len(context.documents) == len(context.retrieved):
        return 0
    sent = {document.key for document in context.documents}
    dropped = [document for document in context.retrieved if document.key not in sent]
    return sum(tenant.tokens.count_documents(dropped))


def _track(
    follower: CacheFollower,
    tenant: Tenant,
    result: BoostResult,
    *,
    engine_id: EngineRequestId | None,
) -> TrackedRequest | None:
    """Register a boosted request with its backend's follower; None if nothing was boosted."""
    context = result.context
    if context is None:
        return None
    layout = None
    if context.index_entry is not None:
        layout = PromptLayout.of(
            context,
            tenant.key,
            preamble=result.preamble,
            bytes_before=result.bytes_before,
            bytes_behind=result.bytes_after,
            is_measured=tenant.booster(follower.name).is_measured(context),
            counter=tenant.tokens,
        )
        name = engine_id.name if engine_id is not None else None
        layout = follower.on_sent(name, layout, cached_tokens=context.predicted_cached_tokens)
    predicted = follower.predict(layout, context.predicted_cached_tokens)
    return TrackedRequest(follower, layout, engine_id, predicted)
