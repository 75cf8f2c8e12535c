"""Relay requests, completions boosted, others unchanged, as plain ASGI."""

import asyncio
import time
from collections.abc import Callable
from functools import partial

from starlette.types import Receive, Scope, Send

from ragboost.cache_sync.tracked_request import TrackedRequest
from ragboost.errors import RequestError
from ragboost.hosted.receipts import PromptCost, find_price, prompt_cost, write_receipt
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.paths import ForwardedPaths
from ragboost.proxy.asgi.request_body import ClientDisconnectedError
from ragboost.proxy.observability.access_log import log_access
from ragboost.proxy.observability.tracing import Tracing
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.relay import UpstreamRequest, relay
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.rewriting.headers import get_header, request_headers
from ragboost.wires.usage import Usage


class Passthrough:
    """Relay any request unchanged; without `paths`, the path is one of the proxy's own."""

    endpoint = "other"

    def __init__(self, state: ProxyState, *, paths: ForwardedPaths | None = None) -> None:
        self._paths = paths
        self._settings = settings = state.settings
        self._keys = state.keys if settings.proxy.has_keys else None
        self._tracing = Tracing() if settings.proxy.tracing else None
        self._has_notes = settings.proxy.tracing or settings.proxy.access_log
        self._bodies = state.bodies
        self._dispatcher = state.dispatcher
        self._metrics = state.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = ClientExchange(scope, receive, send, endpoint=self.endpoint)
        span = self._tracing.start(exchange) if self._tracing else None
        has_ended = False
        try:
            await self._answer_or_refuse(exchange)
            has_ended = True
        finally:
            self._bodies.release(exchange)
            if not has_ended:  # a bug, or the server stops before the response ends
                exchange.outcome = "internal_error"
            seconds = time.perf_counter() - exchange.started
            self._metrics.count_request(
                self.endpoint, exchange.model, exchange.outcome, seconds=seconds
            )
            if self._tracing:
                self._tracing.end(span, exchange)
            if self._settings.proxy.access_log:
                log_access(exchange)

    async def _answer_or_refuse(self, exchange: ClientExchange) -> None:
        try:
            if self._keys is not None and not _is_preflight(exchange):
                exchange.team = self._keys.check(exchange.headers)
            if self._paths is not None:
                self._paths.check(exchange.target.partition("?")[0])
            await self._answer(exchange)
        except RequestError as error:
            exchange.outcome = "refused"
            await exchange.send_error(
                error.status, str(error), param=error.param, retry_after_s=error.retry_after_s
            )
        except ClientDisconnectedError:
            exchange.outcome = "client_left"
        except asyncio.CancelledError:  # the time to finish at shutdown is over
            exchange.outcome = "internal_error"
            if not exchange.status:
                await exchange.send_error(503, "the server is shutting down")

    async def _answer(self, exchange: ClientExchange) -> None:
        body = await self._receive(exchange)
        with exchange, self._dispatcher.admission() as admission:
            try:
                await self._forward(exchange, admission, body)
            finally:
                if self._has_notes:
                    exchange.notes.update(admission.notes)

    async def _receive(self, exchange: ClientExchange) -> bytes:
        return await self._bodies.read(exchange)

    async def _forward(self, exchange: ClientExchange, admission: Admission, body: bytes) -> None:
        self._dispatcher.assign(admission)
        upstream = UpstreamRequest(body, request_headers(exchange.headers))
        await relay(exchange, admission, upstream)


def _is_preflight(exchange: ClientExchange) -> bool:
    """Return True for a request that browsers send without a key, and that engines answer so."""
    names = {name for name, _ in exchange.headers}
    has_body = b"transfer-encoding" in names or get_header(
        exchange.headers, b"content-length"
    ) not in (None, "0")
    return exchange.method == "OPTIONS" and not has_body


class Completions(Passthrough):
    """Boost and relay the requests of one endpoint that answers a prompt."""

    def __init__(
        self, state: ProxyState, *, endpoint: str, has_stream_options: bool = True
    ) -> None:
        super().__init__(state)
        self.endpoint = endpoint
        self._has_stream_options = has_stream_options
        self._boosting = state.boosting
        self._recent = state.recent
        self._sync = state.sync
        self._log = state.log
        self._announcer = state.announcer

    async def _receive(self, exchange: ClientExchange) -> bytes:
        return await self._bodies.read_text(exchange)

    async def _forward(self, exchange: ClientExchange, admission: Admission, body: bytes) -> None:
        if self._has_stream_options:
            admission.announce = partial(self._announcer.announce, exchange.headers)
        upstream = await self._boosting.prepare(
            body,
            exchange.headers,
            admission,
            has_stream_options=self._has_stream_options,
            team=exchange.team,
        )
        write_receipt = self._receipt_writer(upstream, admission)
        reader = ResponseReader(strips_usage=upstream.is_usage_added, write_receipt=write_receipt)
        await self._relay(exchange, admission, upstream, reader=reader)

    def _receipt_writer(
        self, upstream: UpstreamRequest, admission: Admission
    ) -> Callable[[Usage], bytes] | None:
        """Return a function that writes the receipt of a response; None if nobody wants it."""
        if not self._settings.proxy.receipts:
            return None

        def write(usage: Usage) -> bytes:
            return write_receipt(
                usage,
                detection=upstream.detection,
                predicted_tokens=admission.cached_tokens,
                dropped_tokens=upstream.dropped_tokens,
                bought_tokens=upstream.bought_tokens,
                cost=self._cost(upstream, usage),
                advice=self._advice(upstream),
                cache_break=upstream.cache_break.as_json() if upstream.cache_break else None,
            )

        return write

    def _advice(self, upstream: UpstreamRequest) -> str:
        piece = upstream.varying
        if piece is None:
            return ""
        return piece.sentence(self._boosting.tenants.tokens_per_byte(upstream.model))

    def _cost(self, upstream: UpstreamRequest, usage: Usage) -> PromptCost | None:
        prices = self._settings.prices
        price = find_price(prices, upstream.model) if prices else None
        dropped = upstream.dropped_tokens
        return prompt_cost(price, usage, dropped_tokens=dropped) if price is not None else None

    async def _relay(
        self,
        exchange: ClientExchange,
        admission: Admission,
        upstream: UpstreamRequest,
        *,
        reader: ResponseReader,
    ) -> None:
        exchange.model, context = upstream.model, upstream.context
        self._metrics.observe_wait(seconds=admission.waited_s, release=admission.release)
        self._dispatcher.rewritten(
            admission,
            num_bytes=len(upstream.body),
            cached_tokens=context.predicted_cached_tokens if context is not None else 0,
            history=upstream.history,
        )
        if self._has_notes:
            exchange.notes.update(upstream.notes)
        usage = None
        try:
            usage = await relay(exchange, admission, upstream, reader=reader)
        finally:
            backend, is_computed = admission.backend.name, 0 < exchange.status < 300
            if upstream.tracked is not None:
                upstream.tracked.report_end(usage, backend=backend, is_computed=is_computed)
            bypass = upstream.bypass.reason if upstream.bypass is not None else None
            self._recent.add(
                exchange,
                context,
                usage,
                backend=backend,
                detection=upstream.detection,
                bypass=bypass,
                cache_break=upstream.cache_break,
            )
            if self._log is not None and upstream.record is not None:
                self._log.add(exchange, upstream.record, usage)
        if exchange.first_byte is not None:
            seconds = exchange.first_byte - exchange.started
            result = "boosted" if context is not None else "bypassed"
            self._metrics.observe_first_byte(self.endpoint, result, seconds=seconds)
        cost = self._cost(upstream, usage) if usage is not None else None
        if upstream.arm is not None and exchange.outcome == "ok":
            seconds = (exchange.first_byte or exchange.started) - exchange.started
            self._metrics.count_arm(upstream.arm, usage, cost, seconds=seconds)
        if usage is not None:
            self._metrics.count_cost(upstream.dropped_tokens, cost)
            exchange.notes["prompt_tokens"] = usage.prompt_tokens
            exchange.notes["cached_tokens"] = usage.cached_tokens
            bought_tokens = usage.bought_tokens(upstream.bought_tokens)
            self._metrics.count_usage(usage, bought_tokens=bought_tokens)
            await self._learn(upstream.tracked, usage, admission)

    async def _learn(
        self, tracked: TrackedRequest | None, usage: Usage, admission: Admission
    ) -> None:
        cached_tokens, backend = usage.cached_tokens, admission.backend
        if cached_tokens is None:
            return
        backend.prefix_cache.note(predicted=admission.cached_tokens, cached=cached_tokens)
        if tracked is None or not tracked.is_at(backend.name):
            return
        if backend.prefix_cache.is_absent:
            await tracked.forget_all()
            return
        error = self._sync.fidelity.record(
            predicted=tracked.predicted_tokens(cached_tokens),
            reported=cached_tokens,
            prompt_tokens=usage.prompt_tokens,
        )
        self._metrics.observe_prediction(error, self._sync.fidelity.read())
        await tracked.report_usage(usage, cached_tokens=cached_tokens)
