"""The endpoints for operators: health, readiness, version and metrics."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ragboost import __version__
from ragboost.errors import SessionStoreError
from ragboost.proxy.asgi.errors import error_response
from ragboost.proxy.asgi.keys import ApiKeys
from ragboost.proxy.observability.metrics import CONTENT_TYPE
from ragboost.proxy.routes.schemas import (
    EventStreamReadiness,
    Liveness,
    Readiness,
    VersionInfo,
    json_response,
)
from ragboost.proxy.state import ProxyState
from ragboost.proxy.upstream.engines import PROXY_REFUSAL

_MAX_CHECK_S = 1.0  # a session store that does not respond is not to delay an answer


class StatusRoutes:
    def __init__(self, state: ProxyState) -> None:
        self._state = state
        key = state.settings.proxy.metrics_key
        self._metrics_keys = ApiKeys([] if key is None else [key])

    def routes(self) -> Sequence[Route]:
        return [
            Route("/health", self.health),
            Route("/ready", self.ready),
            Route("/version", self.version),
            Route("/chunk_reuse", self.chunk_reuse),
            Route("/metrics", self.metrics),
        ]

    async def health(self, _request: Request) -> Response:
        """Report that the process serves requests."""
        return json_response(Liveness())

    async def ready(self, _request: Request) -> Response:
        """Report if any backend works; 503 if not.

        The status is `degraded` if the session API cannot store turns: all else works.
        """
        streams = {
            view.stream.name: EventStreamReadiness(
                backend=view.backend, state=view.stream.state, reason=view.silence
            )
            for view in self._state.sync.streams
        }
        problems = await self._state.backends.find_problems()
        is_ready = len(problems) < len(self._state.backends.all)
        with suppress(SessionStoreError, TimeoutError):
            async with asyncio.timeout(_MAX_CHECK_S):
                await self._state.store.check()
        problem = self._state.store.problem
        status: Literal["ready", "degraded"] = "ready" if problem is None else "degraded"
        readiness = Readiness(
            status=status if is_ready else "no backend works",
            backends=problems or None,
            sessions=problem,
            kv_events=streams or None,
        )
        return json_response(readiness, status=200 if is_ready else 503, exclude_none=True)

    async def version(self, _request: Request) -> Response:
        """Return the version of RAGBoost, not the backend's."""
        return json_response(VersionInfo(version=__version__))

    async def chunk_reuse(self, _request: Request) -> Response:
        """Refuse: a proxy in front of this one must not add chunk positions, this one does."""
        return error_response(404, PROXY_REFUSAL)

    async def metrics(self, request: Request) -> Response:
        """Return all metrics in Prometheus' text format."""
        self._metrics_keys.check(request.scope["headers"])
        state, metrics = self._state, self._state.metrics
        metrics.index_nodes.set(state.boosting.tenants.num_nodes)
        metrics.history_messages.set(state.boosting.num_kept)
        metrics.tasks.set(len(asyncio.all_tasks()))
        metrics.queue_depth.set(state.dispatcher.num_waiting)
        gauges = (metrics.backend_up, metrics.backend_running, metrics.backend_hold_limit)
        for gauge in (*gauges, metrics.backend_cache_absent):
            gauge.clear()  # of backends that were removed
        for backend in state.backends.all:
            metrics.backend_up.labels(backend.name).set(backend.is_healthy)
            metrics.backend_running.labels(backend.name).set(backend.load.running)
            is_absent = backend.prefix_cache.is_absent
            metrics.backend_cache_absent.labels(backend.name).set(is_absent)
        for name, tokens in state.dispatcher.hold_limits.items():
            metrics.backend_hold_limit.labels(name).set(tokens)
        return Response(metrics.render(), media_type=CONTENT_TYPE)
