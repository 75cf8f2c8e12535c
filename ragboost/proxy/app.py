"""Assemble the proxy: one app that owns all of its state."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.middleware.errors import ServerErrorMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost.cache_sync.sync import CacheSync
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.proxy.asgi.errors import (
    on_internal_error,
    on_request_error,
    on_validation_error,
)
from ragboost.proxy.asgi.limits import ClientDisconnectedError
from ragboost.proxy.observability.metrics import Metrics
from ragboost.proxy.pipeline import BoostPipeline
from ragboost.proxy.routes import openapi
from ragboost.proxy.routes.completions import Completions
from ragboost.proxy.routes.dashboard import Dashboard
from ragboost.proxy.routes.passthrough import Passthrough
from ragboost.proxy.routes.reports import report_route
from ragboost.proxy.routes.running_turns import RunningTurns
from ragboost.proxy.routes.sessions import SessionRoutes
from ragboost.proxy.routes.status import StatusRoutes
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
    """The objects that the routes of one app share."""

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
    """FastAPI, with a direct way to the completion endpoints and these in its OpenAPI document.

    Attributes:
        direct: completion endpoints by path, called for POST without routing or middleware, unless
            the app is mounted below another path or has middleware of its own.
    """

    direct: Mapping[str, ASGIApp] = MappingProxyType({})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or run the lifespan."""
        endpoint = None
        if scope["type"] == "http" and scope["method"] == "POST" and not self.user_middleware:
            endpoint = None if scope.get("root_path") else self.direct.get(scope["path"])
        await (endpoint or super().__call__)(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document of all routes but the passthrough."""
        document = super().openapi()
        openapi.complete(document)
        return document


def create_app(settings: Settings | None = None) -> ProxyApp:
    """Create the proxy's ASGI app; two apps share nothing.

    The last route forwards every request without a route of its own to the backend: put routes that
    you add in front of it.

    Args:
        settings: None: the defaults.
    """
    parts = _Parts.of(settings or Settings())
    has_docs = parts.settings.proxy.docs  # else these paths are the backend's
    app = ProxyApp(
        title="RAGBoost",
        description="All other requests are forwarded to the backend unchanged.",
        version=__version__,
        lifespan=parts.lifespan,
        openapi_url="/openapi.json" if has_docs else None,
        docs_url="/docs" if has_docs else None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
        exception_handlers={
            RequestError: on_request_error,
            RequestValidationError: on_validation_error,
            ClientDisconnectedError: _on_disconnect,
            Exception: on_internal_error,
        },
    )
    app.state.cache_sync, app.state.chunk_reuse = parts.sync, parts.chunk_reuse
    app.state.metrics = parts.metrics
    completions = _completions(parts)
    app.direct = {
        path: ServerErrorMiddleware(endpoint, handler=on_internal_error)
        for path, endpoint in completions.items()
    }
    passthrough = Passthrough(parts.settings, dispatcher=parts.dispatcher, metrics=parts.metrics)
    app.router.routes += [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in completions.items()),
        *_own_routes(parts),
        Route("/{path:path}", passthrough),
    ]
    return app


def _completions(parts: _Parts) -> dict[str, Completions]:
    """Make the completion endpoints, by path."""
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


def _own_routes(parts: _Parts) -> list[BaseRoute]:
    """Make the routes that the proxy answers itself."""
    sessions = SessionRoutes(
        parts.settings,
        dispatcher=parts.dispatcher,
        metrics=parts.metrics,
        boosting=parts.boosting,
        store=parts.store,
        turns=parts.turns,
    )
    status = StatusRoutes(
        dispatcher=parts.dispatcher,
        metrics=parts.metrics,
        boosting=parts.boosting,
        sync=parts.sync,
    )
    return [
        *sessions.routes(),
        report_route(parts.settings, sync=parts.sync),
        *status.routes(),
        *parts.dashboard.routes(),
    ]


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # never received: the client has disconnected
