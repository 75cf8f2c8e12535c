"""Relay a request to any backend, unchanged. Plain ASGI: no routing or dependency injection."""

import time

from starlette.types import Receive, Scope, Send

from ragboost.errors import RequestError
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.headers import request_headers
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.limits import ClientDisconnectedError, read_body
from ragboost.proxy.asgi.paths import ForwardedPaths
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.observability.access_log import log_access
from ragboost.proxy.observability.tracing import Tracing
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.relay import relay
from ragboost.proxy.upstream.request import UpstreamRequest
from ragboost.rewriting.headers import get_header


class Passthrough:
    """Relay any request unchanged.

    Args:
        state: of the app.
        paths: those that are forwarded; None: the path is one of the proxy's own.
    """

    endpoint = "other"

    def __init__(self, state: ProxyState, *, paths: ForwardedPaths | None = None) -> None:
        self._paths = paths
        self._settings = settings = state.settings
        self._keys = ApiKeys(settings.proxy.api_keys)
        self._tracing = Tracing() if settings.proxy.tracing else None
        self._has_notes = settings.proxy.tracing or settings.proxy.access_log
        self._dispatcher = state.dispatcher
        self._metrics = state.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, and count it however it ends."""
        exchange = RequestContext(scope, receive, send, endpoint=self.endpoint)
        span = self._tracing.start(exchange) if self._tracing else None
        has_ended = False
        try:
            await self._answer_or_refuse(exchange)
            has_ended = True
        finally:
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

    async def _answer_or_refuse(self, exchange: RequestContext) -> None:
        try:
            exchange.team = self._keys.check(exchange.headers)
            if self._paths is not None:
                self._paths.check(exchange.target.partition("?")[0])
            await self._answer(exchange)
        except RequestError as error:
            exchange.outcome = "refused"
            retry_after_s = getattr(error, "retry_after_s", None)
            await exchange.send_error(
                error.status, str(error), param=error.param, retry_after_s=retry_after_s
            )
        except ClientDisconnectedError:
            exchange.outcome = "client_left"

    async def _answer(self, exchange: RequestContext) -> None:
        declared = get_header(exchange.headers, b"content-length")
        body = await read_body(exchange.receive, declared=declared, settings=self._settings.proxy)
        async with ClientWatch(exchange.scope, exchange.receive) as watch:
            with self._dispatcher.admission() as admission:
                try:
                    await self._forward(exchange, watch, admission, body)
                finally:
                    if self._has_notes:
                        exchange.notes.update(admission.notes)
        if watch.has_left:
            exchange.outcome = "client_left"

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        self._dispatcher.assign(admission)
        upstream = UpstreamRequest(body, request_headers(exchange.headers))
        await relay(exchange, watch, admission, upstream)
