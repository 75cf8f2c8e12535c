"""Put the proxy together: one app, with everything that it remembers hanging on it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType

from fastapi import FastAPI
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.engine_hooks.reports import REPORT_PATH
from ragboost.proxy.asgi.errors import error_response
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes.completions import Completions
from ragboost.proxy.routes.dashboard import Dashboard
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routes.reports import Reports
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routes.sessions import session_routes
from ragboost.proxy.routes.status import Status
from ragboost.proxy.routing.admission import Dispatcher
from ragboost.proxy.shadow import ShadowPipeline
from ragboost.proxy.upstream.backends import Backends
from ragboost.proxy.upstream.chunk_reuse import ChunkReuseProbe
from ragboost.rewriting.tenants import Tenants
from ragboost.sessions import ChatSessionStore, make_store
from ragboost.version import __version__

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
    chunk_reuse: ChunkReuseProbe
    boosting: BoostPipeline
    dispatcher: Dispatcher
    store: ChatSessionStore
    turns: RunningTurns
    dashboard: Dashboard

    @classmethod
    def of(cls, settings: Settings) -> "_Parts":
        backends, metrics, tenants = Backends.of(settings), Metrics(), Tenants(settings)
        sync = CacheSync(settings, backends=backends, tenants=tenants)
        chunk_reuse = ChunkReuseProbe(settings.backend, backends.all)
        metrics.watch_streams(sync)
        pipeline = ShadowPipeline if settings.proxy.shadow else BoostPipeline
        boosting = pipeline(settings, metrics, tenants=tenants, sync=sync, chunk_reuse=chunk_reuse)
        dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
        return cls(
            settings,
            backends=backends,
            metrics=metrics,
            sync=sync,
            chunk_reuse=chunk_reuse,
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
        self.backends.open()
        try:
            await self.sync.open()
            await self.chunk_reuse.open()
            await self.dashboard.history.open()
            yield
        finally:
            await self.dashboard.history.close()
            await self.turns.drain()
            await self.store.close()
            self.dispatcher.close()
            await self.chunk_reuse.close()
            await self.sync.close()
            await self.backends.close()


class ProxyApp(FastAPI):
    """FastAPI, with a short way to the endpoints that carry the load.

    Attributes:
        direct: endpoints by path, for POST; they are not called this way where the app is mounted
            below another path or has middleware.
    """

    direct: Mapping[str, ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or run the lifespan."""
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST" and not self.user_middleware:
            endpoint = None if scope.get("root_path") else self.direct.get(scope["path"])
        await (endpoint or super().__call__)(scope, receive, send)


def create_app(settings: Settings | None = None) -> ProxyApp:
    """Make the proxy's app.

    Two apps share nothing. Everything that is no route of ours goes to the backend, so that routes
    added later must be put in front of the last one.

    Args:
        settings: None: the defaults.
    """
    parts = _Parts.of(settings or Settings())
    app = ProxyApp(
        title="RAGBoost",
        version=__version__,
        lifespan=parts.lifespan,
        docs_url=None,  # these paths are the backend's
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.cache_sync, app.state.chunk_reuse = parts.sync, parts.chunk_reuse
    app.add_exception_handler(Exception, _internal_error)
    completions = _completions(parts)
    app.direct = {
        path: ServerErrorMiddleware(endpoint, handler=_internal_error)
        for path, endpoint in completions.items()
    }
    for path, endpoint in completions.items():
        app.router.routes.append(Route(path, endpoint, methods=["POST"]))
    app.router.routes.extend(_sessions(parts))
    app.router.routes.extend(_operations(parts))
    passthrough = Passthrough(parts.settings, dispatcher=parts.dispatcher, metrics=parts.metrics)
    app.router.routes.append(Route("/{path:path}", passthrough))
    return app


def _completions(parts: _Parts) -> dict[str, Completions]:
    """The endpoints that answer prompts, by path."""
    return {
        path: Completions(
            parts.settings,
            endpoint=endpoint,
            dispatcher=parts.dispatcher,
            metrics=parts.metrics,
            boosting=parts.boosting,
        )
        for path, endpoint in _BOOSTED.items()
    }


def _sessions(parts: _Parts) -> list[Route]:
    """The chat-session API."""
    return session_routes(
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
        Route("/chunk_reuse", status.no_chunk_reuse, methods=["GET"]),
        Route("/metrics", status.metrics, methods=["GET"]),
        Route("/dashboard", parts.dashboard.page, methods=["GET"]),
        Route("/dashboard/data", parts.dashboard.data, methods=["GET"]),
    ]


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "internal error in RAGBoost; its log has the traceback")
