"""Put the proxy together: one app, with everything that it remembers hanging on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ragboost import __version__
from ragboost.config import Settings
from ragboost.engine_hooks.reports import REPORT_PATH
from ragboost.proxy.backends import Backends
from ragboost.proxy.boosting import Boosting
from ragboost.proxy.chat_sessions import session_routes
from ragboost.proxy.dashboard import Dashboard
from ragboost.proxy.dispatch import Dispatcher
from ragboost.proxy.errors import error_response
from ragboost.proxy.metrics import Metrics
from ragboost.proxy.routes import Completions, Passthrough, Reports, Status
from ragboost.proxy.running_turns import RunningTurns
from ragboost.proxy.stream_metrics import StreamMetrics
from ragboost.proxy.sync import CacheSync
from ragboost.proxy.tenants import Tenants
from ragboost.sessions import ChatSessionStore, make_store

_BOOSTED = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}


@dataclass(frozen=True)
class _Parts:
    """What the routes of one app share."""

    settings: Settings
    backends: Backends
    metrics: Metrics
    sync: CacheSync
    boosting: Boosting
    dispatcher: Dispatcher
    store: ChatSessionStore
    turns: RunningTurns
    dashboard: Dashboard

    @classmethod
    def of(cls, settings: Settings) -> "_Parts":
        backends, metrics, tenants = Backends.of(settings), Metrics(), Tenants(settings)
        sync = CacheSync(settings, backends=backends, tenants=tenants)
        metrics.watch(StreamMetrics(sync))
        boosting = Boosting(settings, metrics, tenants=tenants, sync=sync)
        dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        return cls(
            settings,
            backends=backends,
            metrics=metrics,
            sync=sync,
            boosting=boosting,
            dispatcher=dispatcher,
            store=make_store(settings.session),
            turns=RunningTurns(),
            dashboard=Dashboard(
                settings, dispatcher=dispatcher, metrics=metrics, boosting=boosting, sync=sync
            ),
        )

    @asynccontextmanager
    async def lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        await self.store.open()
        await self.backends.open()
        try:
            await self.sync.open()
            await self.dashboard.history.open()
            yield
        finally:
            await self.dashboard.history.close()
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.sync.close()
            await self.backends.close()


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the proxy's app.

    Two apps share nothing. Everything that is no route of ours goes to the backend, so that routes
    added later must be put in front of the last one.

    Args:
        settings: None: the defaults.
    """
    parts = _Parts.of(settings or Settings())
    app = FastAPI(
        title="RAGBoost",
        version=__version__,
        lifespan=parts.lifespan,
        docs_url=None,  # these paths are the backend's
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.cache_sync = parts.sync
    app.add_exception_handler(Exception, _internal_error)
    app.router.routes.extend(_completions(parts))
    app.router.routes.extend(_operations(parts))
    passthrough = Passthrough(parts.settings, dispatcher=parts.dispatcher, metrics=parts.metrics)
    app.router.routes.append(Route("/{path:path}", passthrough))
    return app


def _completions(parts: _Parts) -> list[Route]:
    """The endpoints that answer prompts, those that boost."""
    routes = []
    for path, endpoint in _BOOSTED.items():
        completions = Completions(
            parts.settings,
            endpoint=endpoint,
            dispatcher=parts.dispatcher,
            metrics=parts.metrics,
            boosting=parts.boosting,
        )
        routes.append(Route(path, completions, methods=["POST"]))
    return routes + session_routes(
        parts.settings,
        dispatcher=parts.dispatcher,
        metrics=parts.metrics,
        boosting=parts.boosting,
        store=parts.store,
        turns=parts.turns,
    )


def _operations(parts: _Parts) -> list[Route]:
    """The endpoints for operators and for the in-engine hook."""
    status = Status(
        dispatcher=parts.dispatcher,
        metrics=parts.metrics,
        boosting=parts.boosting,
        sync=parts.sync,
    )
    return [
        Route(REPORT_PATH, Reports(parts.settings, sync=parts.sync), methods=["POST"]),
        Route("/health", status.health, methods=["GET"]),
        Route("/ready", status.ready, methods=["GET"]),
        Route("/version", status.version, methods=["GET"]),
        Route("/metrics", status.metrics, methods=["GET"]),
        Route("/dashboard", parts.dashboard.page, methods=["GET"]),
        Route("/dashboard/data", parts.dashboard.data, methods=["GET"]),
    ]


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "internal error in RAGBoost; its log has the traceback")
