"""Relay requests, completions boosted, others unchanged, as plain ASGI."""

import asyncio
import time
from collections.abc import Callable

from starlette.types import Receive, Scope, Send

from ragboost.errors import RequestError
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.errors import INTERNAL_ERROR
from ragboost.proxy.asgi.paths import ForwardedPaths
from ragboost.proxy.asgi.request_body import ClientDisconnectedError
from ragboost.proxy.observability.log_lines import log_access
from ragboost.proxy.observability.tracing import Tracing
from ragboost.proxy.records import Answer, SentRequest
from ragboost.proxy.routes.relay import relay
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.requests.headers import get_header, request_headers
from ragboost.requests.parsed_request import ParsedRequest
from ragboost.requests.wires.usage import Usage


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
        except Exception:  # a bug, which the server logs
            if exchange.is_unanswered:
                await exchange.send_error(500, INTERNAL_ERROR)
            raise
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
            if exchange.is_unanswered:
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
        await relay(exchange, admission, SentRequest(body, request_headers(exchange.headers)))


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
        self._error_bar = state.error_bar
        self._observers = state.observers
        self._recent = state.recent

    async def _answer(self, exchange: ClientExchange) -> None:
        try:
            await super()._answer(exchange)
        except RequestError as error:
            self._recent.refused(exchange, error)
            raise

    async def _receive(self, exchange: ClientExchange) -> bytes:
        return await self._bodies.read_text(exchange)

    async def _forward(self, exchange: ClientExchange, admission: Admission, body: bytes) -> None:
        parsed, sent = await self._boosting.prepare(
            body,
            exchange.headers,
            admission,
            has_stream_options=self._has_stream_options,
            team=exchange.team,
        )
        reader = ResponseReader(
            mapper=sent.mapper(),
            strips_usage=sent.is_usage_added,
            write_receipt=self._receipt_writer(parsed, sent, admission),
        )
        await self._relay(exchange, admission, parsed, sent, reader=reader)

    def _receipt_writer(
        self, parsed: ParsedRequest, sent: SentRequest, admission: Admission
    ) -> Callable[[Usage], bytes] | None:
        """Return a function that writes the receipt of a response; None if nobody wants it."""
        if not self._settings.proxy.receipts:
            return None

        return lambda usage: sent.receipt(
            usage, parsed.detection, predicted_tokens=admission.cached_tokens
        )

    async def _relay(
        self,
        exchange: ClientExchange,
        admission: Admission,
        parsed: ParsedRequest,
        sent: SentRequest,
        *,
        reader: ResponseReader,
    ) -> None:
        exchange.model = parsed.tenant_key.model
        self._metrics.observe_wait(seconds=admission.waited_s, release=admission.release)
        self._dispatcher.rewritten(admission, sent)
        if self._has_notes:
            exchange.notes.update(sent.notes(parsed.detection))
        added, usage, ended = sent.response_headers(parsed.detection), None, None
        tap = self._error_bar.tap(parsed, sent)
        reader.tap = tap.feed if tap is not None else None
        try:
            usage = await relay(exchange, admission, sent, added=added, reader=reader)
            ended = time.perf_counter()
        finally:
            answer = _answer(exchange, admission, usage, ended=ended)
            for observe in self._observers:
                await observe(parsed, sent, answer)
            if tap is not None:
                self._error_bar.done(parsed, sent, tap, answer)


def _answer(
    exchange: ClientExchange, admission: Admission, usage: Usage | None, *, ended: float | None
) -> Answer:
    if usage is not None:
        exchange.notes["prompt_tokens"] = usage.prompt_tokens
        exchange.notes["cached_tokens"] = usage.cached_tokens
    return Answer(
        exchange.endpoint,
        exchange.team,
        admission.backend,
        admission.cached_tokens,
        exchange.status,
        exchange.outcome,
        usage,
        exchange.started,
        exchange.first_byte,
        ended,
    )
