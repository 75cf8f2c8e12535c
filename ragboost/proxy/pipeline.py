"""Prepare a completion request for its backend: parse, route, rewrite, encode.

The policy around the rewriter: what runs in a thread, what is counted, and the rule to forward the
original body when boosting fails. Does not know how requests are sent, or how they end.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import (
    EngineRequestId,
    TrackedRequest,
)
from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.proxy.encoder import RequestEncoder
from ragboost.proxy.hosted.stable_order import StableOrder
from ragboost.proxy.observability.detection_log import DetectionLog
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observer import RequestObserver, with_arm
from ragboost.proxy.priorities import Priorities
from ragboost.proxy.quality.error_bar import ErrorBar
from ragboost.proxy.records import (
    NO_OBSERVATION,
    Observation,
    Placed,
    PreparedRequest,
    SentRequest,
)
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.shadow import ShadowTrial
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.engine_kind import EngineKinds
from ragboost.requests.formats import LeftAloneError, make_formats
from ragboost.requests.formats.ragboost_object import FIELD, GRAPH
from ragboost.requests.headers import RawHeaders, request_headers
from ragboost.requests.history import History
from ragboost.requests.json_body import MalformedBodyError
from ragboost.requests.parsed_request import (
    UNREAD,
    Bypass,
    ParsedRequest,
    parse_request,
    run_bytes,
)
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.sent_history import Conversation
from ragboost.types import Request

# A body with more is parsed in a thread: the search of odd texts takes up to 1 us a byte.
_PARSED_BYTES = 64 * 1024
_OBJECT = b'"ragboost"'


Parse = Callable[[bytes], ParsedRequest]


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
        error_bar: ErrorBar,
    ) -> None:
        self.tenants = tenants
        # Apart, so that single questions, which most requests without a name are, evict no
        # conversation that has one.
        self._named, self._unnamed = History(settings.session), History(settings.session)
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
        self._parse = partial(parse_request, formats=self.formats)
        self._error_bar = error_bar
        self._encoder = RequestEncoder(settings, metrics, chunk_reuse, error_bar)
        self._stable = StableOrder.of(settings) if self._shadow is None else None
        self._priorities: Priorities | None = None
        if settings.proxy.priorities:
            self._priorities = Priorities(settings.proxy.priorities)
        self._log = DetectionLog()

    @property
    def num_kept(self) -> int:
        """Number of messages that are kept as they were sent."""
        return len(self._named) + len(self._unnamed)

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
    ) -> PreparedRequest:
        """Assign a request to a backend, and boost it or forward its body unchanged.

        Args:
            session: unique name of the conversation; None: the one that the request gives, if any.
            history: what the engine was sent for the earlier messages; not kept here.

        Raises:
            RequestError: the `ragboost` object is malformed, or the body of a team with a priority.
        """
        started, kind = time.perf_counter(), self._kinds.common
        parse = partial(
            self._parse,
            headers=headers,
            session=session,
            team=team,
            kind=kind,
            has_stream_options=has_stream_options,
        )
        read = partial(self._read, raw, headers, parse, team=team, has_chunks=has_stream_options)
        parsed = await run_bytes(read, len(raw), max_bytes=_PARSED_BYTES)
        if self._shadow is None:
            parsed = self._error_bar.steer(parsed)
        seen = await self._observe(parsed, raw, is_whole=history is None)
        tenant = None
        if not self._is_plain(parsed, history):
            tenant = self.tenants.get(parsed.tenant_key)
        placed = await self._dispatcher.admit(
            admission,
            parsed,
            tenant=tenant,
            find_leading=partial(self._leading, parsed, history),
        )
        is_read = history is not None or self._settings.proxy.receipts
        if tenant is None:
            sent = self._as_it_came(parsed, seen, is_read=is_read)
        else:
            work = self._boost(parsed, placed, tenant, history, is_read=is_read, seen=seen)
            # A thread cannot be cancelled: the tenant is locked until it is done, client or not.
            sent = await (asyncio.shield(work) if parsed.is_large else work)
        seconds = time.perf_counter() - started - placed.waited_s
        self._count(parsed, sent, seconds=seconds)
        return PreparedRequest(parsed, placed, sent, seconds)

    def _read(
        self, raw: bytes, headers: RawHeaders, parse: Parse, *, team: str, has_chunks: bool
    ) -> ParsedRequest:
        try:
            body = self._priorities.apply(raw, team) if self._priorities is not None else raw
            body = self._stable.apply(body) if self._stable is not None else body
            parsed = parse(body)
            if GRAPH in parsed.options:
                readable = self._chunk_reuse.readable(body, has_chunks=has_chunks)
                parsed = parsed if readable is body else parse(readable)
        except MalformedBodyError as error:  # the backend reports it
            if _OBJECT in raw:  # which no backend reads: it would answer without the documents
                raise RequestError(f"a body with a `ragboost` object: {error}") from None
            return ParsedRequest.unread(raw, headers, team=team)
        return with_arm(parsed, share=self._share)

    async def _observe(self, parsed: ParsedRequest, raw: bytes, *, is_whole: bool) -> Observation:
        if parsed.bypass is UNREAD:
            return NO_OBSERVATION
        seen = await self.observer.observe(parsed, is_whole=is_whole)
        if self._stable is not None and (found := seen.cache_break) is not None:
            path = self._stable.client_path(found.path, raw)
            seen = seen._replace(cache_break=found._replace(path=path))
        return seen

    def _known(self, parsed: ParsedRequest, history: Conversation | None) -> Conversation | None:
        """Return what is known of the conversation; None if it has none to look for."""
        if history is not None or not parsed.is_followed:
            return history
        return self._history_of(parsed).known(parsed.chain)

    def _history_of(self, parsed: ParsedRequest) -> History:
        return self._unnamed if parsed.session is None else self._named

    def _leading(self, parsed: ParsedRequest, history: Conversation | None) -> Request | None:
        return parsed.leading(self._known(parsed, history))

    def _is_plain(self, request: ParsedRequest, history: Conversation | None) -> bool:
        """Return True if there is nothing to rewrite, so that the body is forwarded as it came."""
        if request.bypass is UNREAD:
            return True
        if history is None and request.session is not None:
            return False  # what was sent for a named conversation is read under the tenant's lock
        error = request.bypass.error if request.bypass is not None else None
        has_documents = (
            request.found is not None
            or FIELD in request.body.fields
            or (error is not None and not isinstance(error, LeftAloneError))
        )
        has_history = history is not None and bool(history.forms)
        return not (has_documents or has_history or self._encoder.changes_all)

    def _as_it_came(
        self, parsed: ParsedRequest, seen: Observation, *, is_read: bool
    ) -> SentRequest:
        headers = request_headers(parsed.headers, is_read=is_read)
        num_documents = parsed.detection.num_documents if parsed.found is None else 0
        return SentRequest(
            parsed.body.raw, headers, bypass=parsed.bypass, seen=seen, num_documents=num_documents
        )

    async def _boost(
        self,
        parsed: ParsedRequest,
        placed: Placed,
        tenant: Tenant,
        history: Conversation | None,
        *,
        is_read: bool,
        seen: Observation,
    ) -> SentRequest:
        """Rewrite and encode a request, and keep what it adds to its conversation."""
        follower = self._sync.followers[placed.backend.name]
        has_id, tracked = bool(follower.streams), None
        engine_id = EngineRequestId.of(parsed.body.fields, parsed.headers) if has_id else None
        if parsed.is_large and parsed.found is not None:  # to know lengths
            await asyncio.to_thread(tenant.tokens.count_documents, parsed.found.documents)
        async with tenant.lock:  # other requests of its model wait: only while its index is used
            result = await self._rewrite(parsed, placed, tenant, history)
            if (context := result.context) is not None:
                tracked = TrackedRequest(follower, tenant, context, result, engine_id=engine_id)
        self._metrics.count_blank(result.num_blank)
        encode = partial(
            self._encoder.encode,
            parsed,
            tenant,
            result,
            is_read=is_read,
            seen=seen,
            tracked=tracked,
        )
        return await asyncio.to_thread(encode) if parsed.is_large else encode()

    async def _rewrite(
        self,
        request: ParsedRequest,
        placed: Placed,
        tenant: Tenant,
        history: Conversation | None,
    ) -> Rewriting:
        """Rewrite a request under its tenant's lock, and keep what it adds to its conversation."""
        conversation = self._known(request, history)
        in_thread, ratio = request.is_large, None
        if request.has_stream_options:
            ratio = self._chunk_reuse.recompute_ratio(request.options.get("reuse"))
        if self._shadow is not None:
            await self._shadow.run(request, tenant, placed, in_thread=in_thread)

        def rewrite() -> Rewriting:
            template = self._settings.hints.label_template
            result = Rewriting(request, conversation, label_template=template)
            if self._shadow is not None or request.arm == "held_out":
                return result.render(Bypass("held_out" if self._shadow is None else "shadow"))
            booster = tenant.booster(placed.backend.name)
            result.boost(booster, planned=placed.planned, recompute_ratio=ratio)
            result.order_gain = self.observer.order_gain(result, tenant, placed.backend.name)
            return result

        result = await asyncio.to_thread(rewrite) if in_thread else rewrite()
        if history is None:  # else its owner keeps it
            self._history_of(request).add(result.delta)
        return result

    def _count(self, parsed: ParsedRequest, sent: SentRequest, *, seconds: float) -> None:
        self._metrics.observe_overhead("boost", seconds=seconds)
        self._metrics.count_detection(parsed.detection)
        if sent.bypass is not None:
            self._metrics.count_bypass(sent.bypass.reason)
        elif sent.context is not None:
            self._metrics.count_context(sent.context)
        self._log.add(parsed.detection, sent.bypass, num_bytes=len(sent.body))
