"""The endpoints that answer a prompt: boost the request, relay it, report what came of it."""

from functools import partial

from ragboost.cache_sync.tracked_request import SESSION_HEADER
from ragboost.config import Settings
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.headers import request_headers, with_header
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.requests import UpstreamRequest
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routing.admission import Admission, Dispatcher
from ragboost.proxy.upstream.relay import Upstream, boost_headers, relay, with_request_id
from ragboost.proxy.upstream.response_reader import ResponseReader


class Completions(Passthrough):
    """Boosts and relays one of the endpoints that answer a prompt."""

    def __init__(
        self,
        settings: Settings,
        *,
        endpoint: str,
        dispatcher: Dispatcher,
        metrics: Metrics,
        boosting: BoostPipeline,
    ) -> None:
        super().__init__(settings, dispatcher=dispatcher, metrics=metrics)
        self.endpoint = endpoint
        self._boosting = boosting

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, turn: Admission, body: bytes
    ) -> None:
        # Only these two know `stream_options`.
        can_ask_usage = self.endpoint in ("chat", "completions")
        prepared = await self._boosting.prepare(
            body, exchange.headers, place=turn.take, can_ask_usage=can_ask_usage
        )
        report = partial(self._boosting.report_answer, prepared) if prepared.match else None
        reader = ResponseReader(strips_usage=prepared.is_usage_added, on_messages=report)
        await self._relay(exchange, watch, turn, prepared, reader=reader)

    async def _relay(
        self,
        exchange: RequestContext,
        watch: ClientWatch,
        turn: Admission,
        prepared: UpstreamRequest,
        *,
        reader: ResponseReader,
    ) -> None:
        exchange.model = prepared.model
        self._metrics.observe_wait(seconds=turn.waited_s)
        turn.prepared(
            num_bytes=len(prepared.body),
            cached_tokens=prepared.predicted_cached_tokens,
            history=prepared.match.digest if prepared.match else b"",
        )
        if self._has_notes:
            exchange.notes.update(prepared.notes)
        upstream = self._upstream(exchange, prepared, reader=reader)
        usage = None
        try:
            usage = await relay(exchange, watch, turn, upstream)
        finally:
            is_computed = 0 < exchange.status < 300
            self._boosting.answered(prepared, usage, is_computed=is_computed)
            self._boosting.recent.add(exchange, prepared, usage)
        if exchange.first_byte is not None:
            seconds = exchange.first_byte - exchange.started
            result = "boosted" if prepared.context is not None else "bypassed"
            self._metrics.observe_first_byte(self.endpoint, result, seconds=seconds)
        if usage is not None:
            exchange.notes["prompt_tokens"] = usage.prompt_tokens
            exchange.notes["cached_tokens"] = usage.cached_tokens
            await self._boosting.report_usage(prepared, usage)

    @staticmethod
    def _upstream(
        exchange: RequestContext, prepared: UpstreamRequest, *, reader: ResponseReader
    ) -> Upstream:
        rewritten = prepared.rewritten
        is_read = prepared.context is not None or reader.reads_messages
        headers = request_headers(exchange.headers, is_read=is_read)
        if prepared.added_tag is not None:
            headers = with_header(headers, SESSION_HEADER, prepared.added_tag.encode())
        extra = boost_headers(
            bypass=prepared.bypass,
            documents=rewritten.num_documents if rewritten else 0,
            dropped=rewritten.num_dropped if rewritten else 0,
            seconds=prepared.seconds,
        )
        return Upstream(
            with_request_id(headers, exchange),
            prepared.body,
            extra_headers=list(extra),
            reader=reader,
        )
