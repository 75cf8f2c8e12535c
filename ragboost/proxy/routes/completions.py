"""The endpoints. Hot ones are plain ASGI callables: no request parsing, no dependency injection."""

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ragboost.cache_sync.sync import CacheSync
from ragboost.cache_sync.tracked_request import SESSION_HEADER
from ragboost.config import Settings
from ragboost.engine_hooks.reports import CONTENT_TYPE as REPORT_TYPE
from ragboost.errors import RequestError
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.errors import error_response
from ragboost.proxy.asgi.headers import request_headers, with_header
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.asgi.limits import ClientDisconnectedError, read_body
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.observability.access_log import log_access
from ragboost.proxy.observability.metrics import CONTENT_TYPE, Metrics
from ragboost.proxy.observability.tracing import Tracing
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.requests import UpstreamRequest
from ragboost.proxy.routing.admission import Admission, Dispatcher
from ragboost.proxy.upstream.answers import AnswerReader
from ragboost.proxy.upstream.relay import Upstream, boost_headers, relay, with_request_id
from ragboost.rewriting.headers import get_header
from ragboost.version import __version__


class Passthrough:
    """Relays any request untouched."""

    endpoint = "other"

    def __init__(self, settings: Settings, *, dispatcher: Dispatcher, metrics: Metrics) -> None:
        self._settings = settings
        self._keys = ApiKeys(settings.proxy.api_keys)
        self._tracing = Tracing() if settings.proxy.tracing else None
        self._has_notes = settings.proxy.tracing or settings.proxy.access_log
        self._dispatcher = dispatcher
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request and count it, whatever becomes of it."""
        exchange = RequestContext(scope, receive, send, endpoint=self.endpoint)
        span = self._tracing.start(exchange) if self._tracing else None
        has_ended = False
        try:
            await self._answer_or_refuse(exchange)
            has_ended = True
        finally:
            if not has_ended:  # a bug, or the server stops before the answer is over
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
            self._keys.check(exchange.headers)
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
            with self._dispatcher.turn() as turn:
                try:
                    await self._forward(exchange, watch, turn, body)
                finally:
                    if self._has_notes:
                        exchange.notes.update(turn.notes)
        if watch.has_left:
            exchange.outcome = "client_left"

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, turn: Admission, body: bytes
    ) -> None:
        turn.take_any()
        headers = with_request_id(request_headers(exchange.headers), exchange)
        await relay(exchange, watch, turn, Upstream(headers, body))


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
        reader: AnswerReader | None = None
        if prepared.match is not None:
            reader = AnswerReader(partial(self._boosting.report_answer, prepared))
        await self._relay(exchange, watch, turn, prepared, reader=reader)

    async def _relay(
        self,
        exchange: RequestContext,
        watch: ClientWatch,
        turn: Admission,
        prepared: UpstreamRequest,
        *,
        reader: AnswerReader | None,
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
        tap = None
        try:
            tap = await relay(exchange, watch, turn, upstream)
        finally:
            is_computed = 0 < exchange.status < 300
            usage = tap.usage if tap is not None else None
            self._boosting.answered(prepared, usage, is_computed=is_computed)
            self._boosting.recent.add(exchange, prepared, usage)
        if exchange.first_byte is not None:
            seconds = exchange.first_byte - exchange.started
            result = "boosted" if prepared.context is not None else "bypassed"
            self._metrics.observe_first_byte(self.endpoint, result, seconds=seconds)
        if tap is not None and tap.usage is not None:
            exchange.notes["prompt_tokens"] = tap.usage.prompt_tokens
            exchange.notes["cached_tokens"] = tap.usage.cached_tokens
            await self._boosting.report_usage(prepared, tap.usage)

    @staticmethod
    def _upstream(
        exchange: RequestContext, prepared: UpstreamRequest, *, reader: AnswerReader | None
    ) -> Upstream:
        rewritten = prepared.rewritten
        is_read = prepared.context is not None or reader is not None
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
            wants_usage=True,
            is_usage_added=prepared.is_usage_added,
            reader=reader,
        )


class Reports:
    """Takes the reports of the in-engine hook: `POST /v1/index/events`, msgpack both ways."""

    endpoint = "index_events"

    def __init__(self, settings: Settings, *, sync: CacheSync) -> None:
        self._settings = settings.proxy
        self._keys = ApiKeys(settings.proxy.api_keys)
        self._sync = sync

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one report."""
        exchange = RequestContext(scope, receive, send, endpoint=self.endpoint)
        declared = get_header(exchange.headers, b"content-length")
        try:
            self._keys.check(exchange.headers)
            body = await read_body(receive, declared=declared, settings=self._settings)
            answer = await self._sync.report(body)
        except RequestError as error:
            await exchange.send_error(error.status, str(error), param=error.param)
        except ClientDisconnectedError:
            return
        else:
            await Response(answer, media_type=REPORT_TYPE)(scope, receive, send)


class Status:
    """What operators ask: is it alive, is it ready, what does it count."""

    def __init__(
        self, *, dispatcher: Dispatcher, metrics: Metrics, boosting: BoostPipeline, sync: CacheSync
    ) -> None:
        self._sync = sync
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._boosting = boosting

    async def health(self, _request: Request) -> Response:
        """Liveness: the event loop turns."""
        return JSONResponse({"status": "ok"})

    async def ready(self, _request: Request) -> Response:
        """Readiness: the backend answers."""
        streams = {
            view.stream.name: {"backend": view.backend, "state": view.stream.state}
            for view in self._sync.streams
        }
        detail = {"kv_events": streams} if streams else {}
        if await self._dispatcher.backends.is_ready():
            return JSONResponse({"status": "ready", **detail})
        return JSONResponse({"status": "backend unreachable", **detail}, 503)

    async def no_chunk_reuse(self, _request: Request) -> Response:
        """A proxy in front of this one is not to send `ragboost.chunks`: we add them ourselves."""
        return error_response(404, "RAGBoost's proxy places chunks by itself")

    async def version(self, _request: Request) -> Response:
        """Our version, not the backend's."""
        return JSONResponse({"version": __version__})

    async def metrics(self, _request: Request) -> Response:
        """All metrics in Prometheus text format."""
        self._metrics.index_nodes.set(self._boosting.tenants.num_nodes)
        self._metrics.sessions.set(len(self._boosting.conversations))
        self._metrics.queue_depth.set(self._dispatcher.num_waiting)
        for backend in self._dispatcher.backends.all:
            self._metrics.backend_up.labels(backend.name).set(backend.is_healthy)
            self._metrics.backend_running.labels(backend.name).set(backend.load.running)
        return Response(self._metrics.render(), media_type=CONTENT_TYPE)
