"""The endpoints that answer a prompt: boost the request, relay it, report its result."""

from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.relay import relay
from ragboost.proxy.upstream.request import UpstreamRequest
from ragboost.proxy.upstream.response_reader import ResponseReader


class Completions(Passthrough):
    """Boost and relay the requests of one endpoint that answers a prompt."""

    def __init__(self, state: ProxyState, *, endpoint: str) -> None:
        super().__init__(state)
        self.endpoint = endpoint
        self._boosting = state.boosting

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        has_stream_options = self.endpoint in ("chat", "completions")
        upstream = await self._boosting.prepare(
            body,
            exchange.headers,
            admission,
            has_stream_options=has_stream_options,
            team=exchange.team,
        )
        reader = ResponseReader(strips_usage=upstream.is_usage_added)
        await self._relay(exchange, watch, admission, upstream, reader=reader)

    async def _relay(
        self,
        exchange: RequestContext,
        watch: ClientWatch,
        admission: Admission,
        upstream: UpstreamRequest,
        *,
        reader: ResponseReader,
    ) -> None:
        exchange.model, context = upstream.model, upstream.context
        release = admission.assignment.release
        self._metrics.observe_wait(seconds=admission.waited_s, release=release)
        admission.rewritten(
            num_bytes=len(upstream.body),
            cached_tokens=context.predicted_cached_tokens if context is not None else 0,
            history=upstream.history,
        )
        if self._has_notes:
            exchange.notes.update(upstream.notes)
        usage = None
        try:
            usage = await relay(exchange, watch, admission, upstream, reader=reader)
        finally:
            is_computed = 0 < exchange.status < 300
            backend = admission.backend.name
            self._boosting.report_end(upstream, usage, backend=backend, is_computed=is_computed)
            bypass = upstream.bypass.reason if upstream.bypass is not None else None
            self._boosting.recent.add(exchange, context, usage, backend=backend, bypass=bypass)
        if exchange.first_byte is not None:
            seconds = exchange.first_byte - exchange.started
            result = "boosted" if context is not None else "bypassed"
            self._metrics.observe_first_byte(self.endpoint, result, seconds=seconds)
        if usage is not None:
            exchange.notes["prompt_tokens"] = usage.prompt_tokens
            exchange.notes["cached_tokens"] = usage.cached_tokens
            await self._boosting.report_usage(upstream, usage, backend=admission.backend.name)
