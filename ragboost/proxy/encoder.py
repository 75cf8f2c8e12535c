"""Encode a rewritten request as its backend gets it: positions of chunks, ids, usage.

Does not know which documents were sent, nor why.
"""

from collections.abc import Mapping
from typing import Any

from ragboost.booster.tenants import Tenant
from ragboost.cache_sync.tracked_request import (
    SESSION_FIELD,
    SESSION_HEADER,
    EngineRequestId,
    TrackedRequest,
)
from ragboost.config import Settings
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.quality.error_bar import ErrorBar
from ragboost.proxy.records import NO_SAVINGS, Observation, Savings, SentRequest
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.proxy.upstream.mapped_answer import continued_text
from ragboost.requests.chunk_positions import add_chunks
from ragboost.requests.formats.frames import scan
from ragboost.requests.headers import request_headers, with_header
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.rewriter import Rewriting
from ragboost.requests.tool_results import share_tool_results
from ragboost.requests.wires.body import is_stored, message_list


class RequestEncoder:
    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        chunk_reuse: ChunkReuseProbe,
        error_bar: ErrorBar,
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._chunk_reuse, self._error_bar = chunk_reuse, error_bar
        self._is_shadow = settings.proxy.shadow

    @property
    def changes_all(self) -> bool:
        """Requests without documents and history may be changed, too."""
        return self._settings.dedup.passages

    def encode(
        self,
        parsed: ParsedRequest,
        tenant: Tenant,
        result: Rewriting,
        *,
        is_read: bool,
        seen: Observation,
        tracked: TrackedRequest | None,
    ) -> SentRequest:
        """Encode a rewritten request; `is_read`: the proxy reads the response in any case."""
        context, engine_id = result.context, tracked.engine_id if tracked is not None else None
        new_id = engine_id if engine_id is not None and engine_id.is_generated else None
        has_options = parsed.has_stream_options
        is_usage_added = has_options and context is not None and self._lacks_usage(parsed)
        session_id = new_id if has_options else None
        body = self._body(parsed, result, session_id, is_usage_added=is_usage_added)
        headers = request_headers(parsed.headers, is_read=is_read or context is not None)
        if new_id is not None:
            headers = with_header(headers, SESSION_HEADER, new_id.name.encode())
        savings = NO_SAVINGS
        if context is not None:
            savings = Savings.of(context, tenant.tokens, order_gain=result.order_gain)
        num_left = parsed.detection.num_documents if parsed.found is None else 0
        return SentRequest(
            body,
            headers,
            context=context,
            delta=result.delta,
            bypass=result.bypass,
            seen=seen,
            tracked=tracked,
            is_usage_added=is_usage_added,
            num_documents=result.num_documents or num_left,  # they stay where they are
            num_dropped=result.num_dropped + result.num_blank,
            savings=savings,
            citations=result.citations,
            continued=continued_text(result.fields) if result.citations is not None else "",
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
        if request.has_stream_options and self._chunk_reuse.is_supported:
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
        is_boosted = not self._is_shadow and request.arm != "held_out"
        if not (self._settings.dedup.passages and is_boosted) or not name or is_stored(fields):
            return fields
        settings = self._settings
        refers = settings.formats.in_text and settings.dedup.enabled and settings.hints.location

        def find(text: str) -> object:
            return scan(text, frames=settings.formats.frames, is_tool=True).groups

        shared = share_tool_results(fields[name], has_documents=find if refers else lambda _: False)
        if not shared.saved_bytes:
            return fields
        self._metrics.count_passages(shared.saved_bytes)
        return {**fields, name: shared.messages}

    def _lacks_usage(self, parsed: ParsedRequest) -> bool:
        fields = parsed.body.fields
        options = fields.get("stream_options") or {}
        is_asked = not isinstance(options, dict) or bool(options.get("include_usage"))
        return self._settings.proxy.stream_usage and fields.get("stream") is True and not is_asked
