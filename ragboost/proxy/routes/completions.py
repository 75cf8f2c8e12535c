"""The endpoints that answer a prompt: boost the request, relay it, report its result."""

import logging
from collections.abc import Callable
from functools import partial

from ragboost.cache_sync.usage import Usage
from ragboost.hosted.prices import find_price
from ragboost.hosted.receipts import Receipt
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.request_context import RequestContext
from ragboost.proxy.observability.metrics import HANDED_OVER
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.backends import Backend
from ragboost.proxy.upstream.relay import relay
from ragboost.proxy.upstream.request import UpstreamRequest
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.proxy.workers.worker_pool import WorkerLostError, WorkerSlot

logger = logging.getLogger(__name__)


class Completions(Passthrough):
    """Boost and relay the requests of one endpoint that answers a prompt."""

    def __init__(self, state: ProxyState, *, endpoint: str) -> None:
        super().__init__(state)
        self.endpoint = endpoint
        self._boosting = state.boosting

    async def _forward(
        self, exchange: RequestContext, watch: ClientWatch, admission: Admission, body: bytes
    ) -> None:
        prepare = partial(
            self._boosting.prepare,
            body,
            exchange.headers,
            admission,
            has_stream_options=self.endpoint in ("chat", "completions"),
            team=exchange.team,
        )
        upstream = await prepare()
        if upstream.worker is not None:
            if await self._hand_over(exchange, watch, upstream, upstream.worker):
                return
            upstream = await prepare(may_hand_over=False)
        write_receipt = self._receipt_writer(upstream, admission)
        reader = ResponseReader(strips_usage=upstream.is_usage_added, write_receipt=write_receipt)
        await self._relay(exchange, watch, admission, upstream, reader=reader)

    async def _hand_over(
        self,
        exchange: RequestContext,
        watch: ClientWatch,
        upstream: UpstreamRequest,
        worker: Backend,
    ) -> bool:
        """Let another worker answer; return False if it died before its response began.

        The backend may then compute the request twice. Nothing was stored: a worker stores a turn
        only while its client waits for the response's end.
        """
        try:
            await relay(exchange, watch, WorkerSlot(worker), upstream)
        except WorkerLostError as error:
            logger.warning("%s is lost, answering here: %s", worker.name, error)
            return False
        if exchange.outcome == "ok":
            exchange.outcome = HANDED_OVER
        return True

    def _receipt_writer(
        self, upstream: UpstreamRequest, admission: Admission
    ) -> Callable[[Usage], bytes] | None:
        """Return a function that writes the receipt of a response; None if nobody wants it."""
        if not self._settings.proxy.receipts:
            return None
        return lambda usage: self._receipt(upstream, admission, usage).encode()

    def _receipt(self, upstream: UpstreamRequest, admission: Admission, usage: Usage) -> Receipt:
        return Receipt.of(
            usage,
            predicted=admission.cached_tokens,
            dropped_tokens=upstream.dropped_tokens,
            price=find_price(self._settings.prices, upstream.model),
        )

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
            self._metrics.count_receipt(self._receipt(upstream, admission, usage))
            exchange.notes["prompt_tokens"] = usage.prompt_tokens
            exchange.notes["cached_tokens"] = usage.cached_tokens
            await self._boosting.report_usage(upstream, usage, backend=admission.backend.name)
