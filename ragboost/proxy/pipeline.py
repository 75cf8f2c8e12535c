"""Prepare a completion request for its backend: parse, compare, route, rewrite, encode.

The policy around the rewriter: what runs in a thread, what is counted, and the rule to forward the
original body when boosting fails. Does not know how requests are sent, or how they end.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ragboost.booster.tenants import Tenant, Tenants
from ragboost.booster.tokens.chat_template import ChatTemplate
from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import (
    SESSION_FIELD,
    SESSION_HEADER,
    EngineRequestId,
    TrackedRequest,
)
from ragboost.config import Settings
from ragboost.errors import ConfigError, RequestError
from ragboost.proxy.asgi.keys import Priorities
from ragboost.proxy.hosted.comparison import CacheBreak, find_break
from ragboost.proxy.hosted.conversations import MAX_TEAMS, PrefixWatch
from ragboost.proxy.hosted.stable_order import StableOrder
from ragboost.proxy.observability.hold_out import with_arm
from ragboost.proxy.observability.log_lines import log_detection
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.observability.request_log import describe
from ragboost.proxy.quality.error_bar import ErrorBar
from ragboost.proxy.records import NO_SAVINGS, Savings, SentRequest
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.routing.dispatcher import Dispatcher
from ragboost.proxy.shadow import ShadowTrial
from ragboost.proxy.upstream.engines import Engines
from ragboost.proxy.upstream.mapped_answer import continued_text
from ragboost.requests.chunk_positions import add_chunks
from ragboost.requests.formats import LeftAloneError, make_formats
from ragboost.requests.formats.frames import scan
from ragboost.requests.formats.ragboost_object import FIELD, GRAPH
from ragboost.requests.headers import RawHeaders, request_headers, with_header
from ragboost.requests.history import History
from ragboost.requests.json_body import MalformedBodyError
from ragboost.requests.parsed_request import UNREAD, Bypass, ParsedRequest, parse_request, run_bytes
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.sent_history import Conversation
from ragboost.requests.tool_results import share_tool_results
from ragboost.requests.wires.body import is_stored, message_list
from ragboost.types import Request

# A body with more is parsed in a thread: the search of odd texts takes up to 1 us a byte.
_PARSED_BYTES = 64 * 1024
# Both requests may have so much to be compared on the event loop: that takes about 2 ms.
_COMPARED_BYTES = 64 * 1024
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
        engines: Engines,
        dispatcher: Dispatcher,
        error_bar: ErrorBar,
    ) -> None:
        self.tenants = tenants
        # Apart, so that single questions, which most requests without a name are, evict no
        # conversation that has one.
        self._named, self._unnamed = History.of(settings), History.of(settings)
        proxy = settings.proxy  # the teams of a file may become more
        self._watch = PrefixWatch(
            max_bytes=proxy.memory.prompts,
            num_teams=len(proxy.api_keys) if proxy.api_keys_file is None else MAX_TEAMS,
            template=ChatTemplate.beside(settings.tokens.tokenizer),
        )
        self._settings = settings
        self._metrics, self._error_bar = metrics, error_bar
        self._sync = sync
        self._engines = engines
        self._dispatcher = dispatcher
        # Tries boosting on the side, and nothing is boosted: the documents of a `ragboost` object
        # are rendered in the order given. None: requests are boosted.
        self._shadow: ShadowTrial | None = None
        if proxy.shadow:
            self._shadow = ShadowTrial(settings, metrics, tenants)
        self._share = settings.boost.share
        if self._shadow is not None and self._share < 1:
            raise ConfigError("boost.share has no effect with proxy.shadow: remove one of them")
        self.formats = make_formats(settings, learns=True)
        self._parse = partial(parse_request, formats=self.formats)
        self._stable = StableOrder.of(settings) if self._shadow is None else None
        self._priorities = Priorities(proxy.priorities) if proxy.priorities else None
        self._logged: set[tuple[str, str]] = set()  # what was seen of documents, once each

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
    ) -> tuple[ParsedRequest, SentRequest]:
        """Assign a request to a backend, and boost it or forward its body unchanged.

        Args:
            session: unique name of the conversation; None: the one that the request gives, if any.
            history: what the engine was sent for the earlier messages; not kept here.

        Raises:
            RequestError: the `ragboost` object is malformed, or the body of a team with a priority.
        """
        started, kind = time.perf_counter(), self._engines.kind
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
        is_read = history is not None or self._settings.proxy.receipts
        observed: dict[str, Any] = {}
        if parsed.bypass is not UNREAD:
            if history is None:  # the client sent the conversation
                observed["cache_break"] = await self._cache_break(parsed)
            if self._settings.proxy.record is not None:
                tokens = self.tenants.get(parsed.tenant_key).tokens
                observed["record"] = describe(parsed, tokens)
        tenant = None
        if not self._is_plain(parsed, history):
            tenant = self.tenants.get(parsed.tenant_key)
        find_leading = partial(self._leading, parsed, history)
        await self._dispatcher.admit(admission, parsed, tenant=tenant, find_leading=find_leading)
        observed["started"] = started + admission.waited_s
        if tenant is None:
            sent = self._encode(parsed, is_read=is_read, **observed)
        else:
            work = self._boost(parsed, admission, tenant, history, is_read=is_read, **observed)
            # A thread cannot be cancelled: the tenant is locked until it is done, client or not.
            sent = await (asyncio.shield(work) if parsed.is_large else work)
        num_bytes, logged = len(sent.body), self._logged
        log_detection(parsed.detection, sent.bypass, num_bytes=num_bytes, logged=logged)
        return parsed, sent

    def _read(
        self, raw: bytes, headers: RawHeaders, parse: Parse, *, team: str, has_chunks: bool
    ) -> ParsedRequest:
        try:
            body = self._priorities.apply(raw, team) if self._priorities is not None else raw
            body = self._stable.apply(body) if self._stable is not None else body
            parsed = parse(body)
            if GRAPH in parsed.options:
                readable = self._engines.readable(body, has_chunks=has_chunks)
                parsed = parsed if readable is body else parse(readable)
        except MalformedBodyError as error:  # the backend reports it
            if _OBJECT in raw:  # which no backend reads: it would answer without the documents
                raise RequestError(f"a body with a `ragboost` object: {error}") from None
            return ParsedRequest.unread(raw, headers, team=team)
        return with_arm(parsed, share=self._share)

    async def _cache_break(self, parsed: ParsedRequest) -> CacheBreak | None:
        """Compare a request with the one before it in its conversation."""
        pair = self._watch.observe(parsed, kind=parsed.kind)
        if pair is None:
            return None
        # Rendering takes longer.
        template = self._watch.template
        max_bytes = _COMPARED_BYTES if template is None else 0
        num_bytes = len(pair.new.raw) + len(pair.before.raw)
        find = partial(find_break, pair, kind=parsed.kind, template=template)
        found = await run_bytes(find, num_bytes, max_bytes=max_bytes)
        ratio = self.tenants.tokens_per_byte(parsed.tenant_key.model)
        return CacheBreak.of(found, tokens_per_byte=ratio)

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
        if has_documents or self._settings.dedup.passages:
            return False
        known = self._known(request, history)  # also of a list that stays, but was moved before
        return known is None or not known.forms

    async def _boost(
        self,
        parsed: ParsedRequest,
        admission: Admission,
        tenant: Tenant,
        history: Conversation | None,
        **observed: Any,
    ) -> SentRequest:
        """Rewrite and encode a request, and keep what it adds to its conversation."""
        follower = self._sync.followers[admission.backend.name]
        has_id, tracked = bool(follower.streams), None
        engine_id = EngineRequestId.of(parsed.body.fields, parsed.headers) if has_id else None
        if parsed.is_large and parsed.found is not None:  # to know lengths
            await asyncio.to_thread(tenant.tokens.count_documents, parsed.found.documents)
        async with tenant.lock:  # other requests of its model wait: only while its index is used
            result = await self._rewrite(parsed, admission, tenant, history)
            if (context := result.context) is not None:
                tracked = TrackedRequest(follower, tenant, context, result, engine_id=engine_id)
        encode = partial(self._encode, parsed, tenant, result, tracked, **observed)
        return await asyncio.to_thread(encode) if parsed.is_large else encode()

    async def _rewrite(
        self,
        request: ParsedRequest,
        admission: Admission,
        tenant: Tenant,
        history: Conversation | None,
    ) -> Rewriting:
        """Rewrite a request under its tenant's lock, and keep what it adds to its conversation."""
        conversation = self._known(request, history)
        backend, planned, ratio = admission.backend.name, admission.planned, None
        if request.has_stream_options and self._engines.is_supported:
            ratio = self._engines.recompute_ratio(request.options.get("reuse"))
        if self._shadow is not None:
            await self._shadow.run(request, tenant, backend, planned=planned)

        def rewrite() -> Rewriting:
            template = self._settings.hints.label_template
            result = Rewriting(request, conversation, label_template=template)
            if self._shadow is not None or request.arm == "held_out":
                return result.render(Bypass("held_out" if self._shadow is None else "shadow"))
            result.boost(tenant.booster(backend), planned=planned, recompute_ratio=ratio)
            result.order_gain = self.tenants.order_gain(
                result.context, tenant, backend, prompt_prefix=result.prompt_prefix
            )
            return result

        result = await asyncio.to_thread(rewrite) if request.is_large else rewrite()
        if history is None:  # else its owner keeps it
            self._history_of(request).add(result.delta)
        return result

    def _encode(
        self,
        parsed: ParsedRequest,
        tenant: Tenant | None = None,
        result: Rewriting | None = None,
        tracked: TrackedRequest | None = None,
        *,
        is_read: bool,
        started: float,
        **observed: Any,
    ) -> SentRequest:
        """Encode a request as its backend gets it; without a tenant, as it came.

        Args:
            is_read: the proxy reads the response in any case.
            started: when it began to be prepared, less the time in which it waited.
            observed: its `cache_break` and `record`.
        """
        num_left = parsed.detection.num_documents if parsed.found is None else 0
        if tenant is None or result is None:
            headers = request_headers(parsed.headers, is_read=is_read)
            observed |= {"bypass": parsed.bypass, "num_documents": num_left}
            return SentRequest(
                parsed.body.raw, headers, seconds=time.perf_counter() - started, **observed
            )
        context, engine_id = result.context, tracked.engine_id if tracked is not None else None
        new_id = engine_id if engine_id is not None and engine_id.is_generated else None
        has_options = parsed.has_stream_options
        is_usage_added = has_options and context is not None and self._lacks_usage(parsed)
        session_id = new_id if has_options else None
        body = self._body(parsed, result, session_id, is_usage_added=is_usage_added)
        is_read = is_read or context is not None or result.citations is not None
        headers = request_headers(parsed.headers, is_read=is_read)
        if new_id is not None:
            headers = with_header(headers, SESSION_HEADER, new_id.name.encode())
        savings = NO_SAVINGS
        if context is not None:
            savings = Savings.of(context, tenant.tokens, order_gain=result.order_gain)
        self._metrics.documents.labels("blank").inc(result.num_blank)
        return SentRequest(
            body,
            headers,
            context=context,
            delta=result.delta,
            bypass=result.bypass,
            tracked=tracked,
            is_usage_added=is_usage_added,
            num_documents=result.num_documents or num_left,  # they stay where they are
            num_dropped=result.num_dropped + result.num_blank,
            savings=savings,
            citations=result.citations,
            continued=continued_text(result.fields, continues=not has_options)
            if result.citations is not None
            else "",
            seconds=time.perf_counter() - started,
            **observed,
        )

    def _body(
        self,
        request: ParsedRequest,
        result: Rewriting,
        new_id: EngineRequestId | None,
        *,
        is_usage_added: bool,
    ) -> bytes:
        fields, context = self._share_passages(request, result), result.context
        if is_usage_added:
            options = fields.get("stream_options") or {}
            fields = {**fields, "stream_options": {**options, "include_usage": True}}
        if request.has_stream_options and self._engines.is_supported:
            message = request.found.message if request.found is not None else None
            reuse, team = request.options.get("reuse"), request.tenant_key.team
            documents = context.documents if context is not None else ()
            fields = add_chunks(
                fields,
                context,
                message=message,
                reuse=reuse,
                tenant=team,
                not_reused=self._error_bar.not_reused(request, documents),
            )
        if new_id is not None:
            fields = {**fields, SESSION_FIELD: new_id.name}
        return request.body.encode(fields)

    def _share_passages(self, request: ParsedRequest, result: Rewriting) -> Mapping[str, Any]:
        fields = result.fields
        name = message_list(fields)
        # With a conversation stored at the backend, results are numbered from an unknown number on.
        is_boosted = not self._settings.proxy.shadow and request.arm != "held_out"
        if not (self._settings.dedup.passages and is_boosted) or not name or is_stored(fields):
            return fields
        settings = self._settings
        refers = settings.formats.in_text and settings.dedup.enabled and settings.hints.location

        def find(text: str) -> object:
            return scan(text, frames=settings.formats.frames, is_tool=True).groups

        shared = share_tool_results(fields[name], has_documents=find if refers else lambda _: False)
        if not shared.saved_bytes:
            return fields
        self._metrics.passage_bytes.inc(shared.saved_bytes)
        return {**fields, name: shared.messages}

    def _lacks_usage(self, parsed: ParsedRequest) -> bool:
        fields = parsed.body.fields
        options = fields.get("stream_options") or {}
        is_asked = not isinstance(options, dict) or bool(options.get("include_usage"))
        return self._settings.proxy.stream_usage and fields.get("stream") is True and not is_asked
