"""Prepare a completion request for its backend: parse, route, rewrite, encode.

The policy around the rewriter: what runs in a thread, what is counted, and the rule to forward the
original body when boosting fails. Does not know how requests are sent, or how they end.
"""

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import (
    SESSION_FIELD,
    SESSION_HEADER,
    EngineRequestId,
    TrackedRequest,
)
from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.formats import LeftAloneError, make_formats
from ragboost.formats.frames import scan
from ragboost.formats.ragboost_object import FIELD, GRAPH
from ragboost.hosted.cache_marks import CacheMarker, mark_style
from ragboost.hosted.stable_order import StableOrder
from ragboost.proxy.observability.detection_log import DetectionLog
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observer import Parse, RequestObserver, choose_arm
from ragboost.proxy.priorities import Priorities
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.shadow import ShadowTrial
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.engine_kind import EngineKinds
from ragboost.proxy.upstream.mapped_answer import AnswerMapper
from ragboost.proxy.upstream.relay import UpstreamRequest
from ragboost.rewriting.chunk_positions import add_chunks
from ragboost.rewriting.headers import RawHeaders, request_headers, with_header
from ragboost.rewriting.json_body import MalformedBodyError
from ragboost.rewriting.parsed_request import Bypass, ParsedRequest, parse_request, run_bytes
from ragboost.rewriting.recognition import Histories
from ragboost.rewriting.rewriter import Rewriting
from ragboost.rewriting.sent_history import UNCHANGED, Conversation, Conversations, Digest
from ragboost.rewriting.tool_results import share_tool_results
from ragboost.wires.body import is_stored, message_list

# A body with more is parsed in a thread: the search of odd texts takes up to 1 us a byte.
_PARSED_BYTES = 64 * 1024
_UNREAD = Bypass("malformed_body")
_OBJECT = b'"ragboost"'


class BoostPipeline:
    """Prepare the requests of one app."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        *,
        tenants: Tenants,
        sync: CacheSync,
        chunk_reuse: ChunkReuseProbe,
        kinds: EngineKinds,
        dispatcher: Dispatcher,
    ) -> None:
        self.tenants = tenants
        self.conversations = Conversations(settings.session)  # those with a name
        self.observer = RequestObserver(settings, tenants, metrics)
        self._settings = settings
        self._metrics = metrics
        self._sync = sync
        self._chunk_reuse = chunk_reuse
        self._kinds = kinds
        self._dispatcher = dispatcher
        # Tries boosting on the side, and nothing is boosted: the documents of a `ragboost` object
        # are rendered in the order given. None: requests are boosted.
        self._shadow: ShadowTrial | None = None
        if settings.proxy.shadow:
            self._shadow = ShadowTrial(settings, metrics, self.observer)
        self._share = settings.boost.share
        if self._shadow is not None and self._share < 1:
            raise ConfigError("boost.share has no effect with proxy.shadow: remove one of them")
        self.formats = make_formats(settings, learns=True)
        self._parse = partial(
            parse_request,
            formats=self.formats,
            recognises=settings.session.stateless,
        )
        style = mark_style(settings)
        has_marks = style != "none" and self._shadow is None
        self._marker = CacheMarker(style, settings.prices) if has_marks else None
        self._stable = StableOrder.of(settings) if self._shadow is None else None
        self._priorities: Priorities | None = None
        if settings.proxy.priorities:
            self._priorities = Priorities(settings.proxy.priorities)
        self._histories = Histories(settings.session)
        self._log = DetectionLog()

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
    ) -> UpstreamRequest:
        """Assign a request to a backend, and boost it or forward its body unchanged.

        Args:
            session: unique name of the conversation; None: the request's, or it is recognised.
            history: what the engine was sent for the earlier messages; not kept here.

        Raises:
            RequestError: the `ragboost` object is malformed, or the body of a team with a priority.
        """
        started = time.perf_counter()
        names = {"session": session, "team": team, "kind": self._kinds.common}
        parse = partial(self._parse, headers=headers, **names)
        upstream = UpstreamRequest(raw)
        try:
            read = partial(self._read, raw, parse, team=team, has_chunks=has_stream_options)
            request = await run_bytes(read, len(raw), max_bytes=_PARSED_BYTES)
        except MalformedBodyError as error:  # the backend reports it
            if _OBJECT in raw:  # which no backend reads: it would answer without the documents
                raise RequestError(f"a body with a `ragboost` object: {error}") from None
            await self._dispatcher.admit_unparsed(admission, len(raw))
            upstream.bypass, upstream.headers = _UNREAD, request_headers(headers)
            return self._count(upstream, seconds=_seconds(started, admission))
        choose_arm(request, share=self._share)
        request = await self.observer.observe(request, upstream, parse, is_whole=history is None)
        if self._stable is not None and (found := upstream.cache_break) is not None:
            path = self._stable.client_path(found.path, raw)
            upstream.cache_break = found._replace(path=path)
        upstream.model, upstream.arm = request.tenant_key.model, request.arm
        conversation = self._recognised(request) or history
        tenant, upstream.history = await self._admit(request, conversation, admission)
        is_read = history is not None or self._settings.proxy.receipts
        if tenant is None:
            upstream.body, upstream.bypass = request.body.raw, request.bypass
            upstream.headers = request_headers(headers, is_read=is_read)
        else:
            parts = request, upstream, admission, tenant, conversation
            has_options = has_stream_options
            work = self._boost(*parts, headers=headers, has_options=has_options, is_read=is_read)
            # A thread cannot be cancelled: the tenant is locked until it is done, client or not.
            await (asyncio.shield(work) if request.is_large else work)
        return self._count(upstream, seconds=_seconds(started, admission))

    def _read(self, raw: bytes, parse: Parse, *, team: str, has_chunks: bool) -> ParsedRequest:
        if self._priorities is not None:
            raw = self._priorities.apply(raw, team)
        if self._stable is not None:
            raw = self._stable.apply(raw)
        request = parse(raw)
        if GRAPH in request.options:
            readable = self._chunk_reuse.readable(raw, has_chunks=has_chunks)
            return request if readable is raw else parse(readable)
        return request

    def _recognised(self, request: ParsedRequest) -> Conversation | None:
        if request.links:
            return self._histories.match(request)
        self._histories.add_unchanged(request)
        return None

    async def _admit(
        self, request: ParsedRequest, conversation: Conversation | None, admission: Admission
    ) -> tuple[Tenant | None, Digest]:
        """Wait for a place at a backend; return the request's tenant, None if its body is forwarded
        as it came, and the digest of its conversation."""
        tenant = None
        if not self._is_plain(request, conversation):
            tenant = self.tenants.get(request.tenant_key)
        history = conversation
        if history is None and request.session is not None and tenant is not None:
            history = self.conversations.get(request.session)
        digest = conversation.digest if conversation is not None else UNCHANGED
        await self._dispatcher.admit(
            admission, request, tenant=tenant, conversation=history, history=digest
        )
        return tenant, digest

    def _is_plain(self, request: ParsedRequest, conversation: Conversation | None) -> bool:
        """Return True if there is nothing to rewrite, so that the body is forwarded as it came."""
        if conversation is None and request.session is not None:
            return False  # what was sent for a named conversation is read under the tenant's lock
        error = request.bypass.error if request.bypass is not None else None
        has_documents = (
            request.found is not None
            or FIELD in request.body.fields
            or (error is not None and not isinstance(error, LeftAloneError))
        )
        has_history = conversation is not None and bool(conversation.forms)
        is_marked = self._marker is not None
        return not (has_documents or has_history or is_marked or self._settings.dedup.passages)

    async def _boost(
        self,
        request: ParsedRequest,
        upstream: UpstreamRequest,
        admission: Admission,
        tenant: Tenant,
        conversation: Conversation | None,
        *,
        headers: RawHeaders,
        has_options: bool,
        is_read: bool,
    ) -> None:
        """Rewrite and encode a request, and keep what it adds to its conversation."""
        follower = self._sync.followers[admission.backend.name]
        fields = request.body.fields
        engine_id = EngineRequestId.of(fields, headers) if follower.streams else None
        reuse = request.options.get("reuse")
        ratio = self._chunk_reuse.recompute_ratio(reuse) if has_options else None
        if (in_thread := request.is_large) and request.found is not None:  # to know lengths
            await asyncio.to_thread(tenant.tokens.count_documents, request.found.documents)
        async with tenant.lock:  # other requests of its model wait: only while its index is used
            parts = request, conversation, tenant, admission, ratio
            conversation, result = await self._rewrite(*parts)
            context, tracked = result.context, None
            if context is not None:
                tracked = TrackedRequest(follower, tenant, context, result, engine_id=engine_id)
        upstream.history = self._remember(request, conversation, result)
        upstream.context, upstream.tracked, upstream.delta = context, tracked, result.delta
        upstream.bypass = result.bypass
        if result.citations is not None:
            upstream.mapper = AnswerMapper(result.citations, request=result.fields)
        upstream.num_documents = result.num_documents or upstream.num_documents
        upstream.num_dropped = result.num_dropped + result.num_blank
        self._metrics.count_blank(result.num_blank)
        dropped = context.dropped if context is not None else ()
        is_usage_added = has_options and context is not None and self._lacks_usage(fields)
        upstream.is_usage_added = is_usage_added

        def encode() -> None:
            upstream.body = self._encode(
                request,
                result,
                tenant,
                engine_id if has_options and tracked is not None else None,
                has_options=has_options,
                is_usage_added=is_usage_added,
                is_hosted=not follower.streams,
            )
            sent = request_headers(headers, is_read=is_read or context is not None)
            if tracked is not None and engine_id is not None and engine_id.is_generated:
                sent = with_header(sent, SESSION_HEADER, engine_id.name.encode())
            upstream.headers = sent
            if dropped:
                upstream.dropped_tokens = sum(tenant.tokens.count_documents(dropped))

        if in_thread:
            await asyncio.to_thread(encode)
        else:
            encode()

    async def _rewrite(
        self,
        request: ParsedRequest,
        conversation: Conversation | None,
        tenant: Tenant,
        admission: Admission,
        ratio: float | None,
    ) -> tuple[Conversation | None, Rewriting]:
        """Rewrite a request under its tenant's lock; return the result with its conversation."""
        is_named = conversation is None and request.session is not None
        if is_named and request.session is not None:
            conversation = self.conversations.get(request.session)
        in_thread = request.is_large
        if self._shadow is not None:
            await self._shadow.run(request, tenant, admission, in_thread=in_thread)

        def rewrite() -> Rewriting:
            template = self._settings.hints.label_template
            result = Rewriting(request, conversation, label_template=template)
            if self._shadow is not None or request.arm == "held_out":
                return result.render(Bypass("held_out" if self._shadow is None else "shadow"))
            booster = tenant.booster(admission.backend.name)
            result.boost(booster, planned=admission.planned, recompute_ratio=ratio)
            self.observer.compare_orders(result, tenant, admission.backend.name)
            return result

        result = await asyncio.to_thread(rewrite) if in_thread else rewrite()
        if is_named and conversation is not None:
            self.conversations.add(conversation, result.delta)
        return conversation, result

    def _remember(
        self, request: ParsedRequest, conversation: Conversation | None, result: Rewriting
    ) -> Digest:
        if not request.links or conversation is None:
            return UNCHANGED
        return self._histories.add(request, conversation, result.delta)

    def _encode(
        self,
        request: ParsedRequest,
        result: Rewriting,
        tenant: Tenant,
        id_field: EngineRequestId | None,
        *,
        has_options: bool,
        is_usage_added: bool,
        is_hosted: bool,
    ) -> bytes:
        fields, context = self._share_passages(request, result), result.context
        if self._marker is not None and is_hosted:
            ratio = tenant.tokens.tokens_per_byte
            fields = self._marker.mark(
                fields, context, tenant=request.tenant_key, tokens_per_byte=ratio
            )
        if is_usage_added:
            options = fields.get("stream_options") or {}
            fields = {**fields, "stream_options": {**options, "include_usage": True}}
        if has_options and self._chunk_reuse.is_supported:
            message = request.found.message if request.found is not None else None
            reuse, team = request.options.get("reuse"), request.tenant_key.team
            fields = add_chunks(fields, context, message=message, reuse=reuse, tenant=team)
        if id_field is not None and id_field.is_generated:
            fields = {**fields, SESSION_FIELD: id_field.name}
        return request.body.encode(fields)

    def _share_passages(self, request: ParsedRequest, result: Rewriting) -> Mapping[str, Any]:
        fields = result.fields
        name = message_list(fields)
        # With a conversation stored at the backend, results are numbered from an unknown number on.
        is_boosted = self._shadow is None and request.arm != "held_out"
        if not (self._settings.dedup.passages and is_boosted) or not name or is_stored(fields):
            return fields
        settings = self._settings
        refers = settings.formats.in_text and settings.dedup.enabled and settings.hints.location

        def find(text: str) -> object:
            return scan(text, frames=settings.formats.frames, is_tool=True).groups

        shared = share_tool_results(
            fields[name],
            settings=settings.dedup,
            has_documents=find if refers else lambda _: False,
        )
        if not shared.saved_bytes:
            return fields
        self._metrics.count_passages(shared.saved_bytes)
        return {**fields, name: shared.messages}

    def _lacks_usage(self, fields: Mapping[str, Any]) -> bool:
        options = fields.get("stream_options") or {}
        is_asked = not isinstance(options, dict) or bool(options.get("include_usage"))
        return self._settings.proxy.stream_usage and fields.get("stream") is True and not is_asked

    def _count(self, upstream: UpstreamRequest, *, seconds: float) -> UpstreamRequest:
        upstream.seconds = seconds
        self._metrics.observe_overhead("boost", seconds=seconds)
        self._metrics.count_detection(upstream.detection)
        if upstream.bypass is not None:
            self._metrics.count_bypass(upstream.bypass.reason)
        elif upstream.context is not None:
            self._metrics.count_context(upstream.context)
        self._log.add(upstream.detection, upstream.bypass, num_bytes=len(upstream.body))
        return upstream


def _seconds(started: float, admission: Admission) -> float:
    """Return the proxy's own time, without the wait for a backend."""
    return time.perf_counter() - started - admission.waited_s
