"""Assemble the proxy: one app that owns all of its state."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import MappingProxyType

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ragboost import __version__
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.proxy.asgi.errors import on_internal_error, on_request_error
from ragboost.proxy.asgi.paths import ForwardedPaths
from ragboost.proxy.asgi.request_body import ClientDisconnectedError
from ragboost.proxy.routes.completions import Completions, Passthrough
from ragboost.proxy.routes.dashboard import Dashboard
from ragboost.proxy.routes.explain import explain_route
from ragboost.proxy.routes.reports import report_route
from ragboost.proxy.routes.sessions import SessionRoutes
from ragboost.proxy.routes.status import StatusRoutes
from ragboost.proxy.state import ProxyState
from ragboost.requests.wires.registry import WIRES

_HOME = {
    "name": "RAGBoost",
    "version": __version__,
    "clients": "/v1",
    "dashboard": "/dashboard",
    "metrics": "/metrics",
    "ready": "/ready",
}


class ProxyApp(Starlette):
    """Starlette, with a direct way to the completion endpoints."""

    # Completion endpoints by path, called for POST without routing or middleware, unless the app is
    # mounted below another path or has middleware of its own.
    direct: Mapping[str, ASGIApp] = MappingProxyType({})
    own_routes: Sequence[BaseRoute] = ()  # all but those that forward what others do not match

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or run the lifespan."""
        endpoint = None
        if scope["type"] == "http":
            if scope["path"].endswith("/"):
                scope = self._without_slash(scope)
            if scope["method"] == "POST" and not self.user_middleware:
                endpoint = None if scope.get("root_path") else self.direct.get(scope["path"])
        await (endpoint or super().__call__)(scope, receive, send)

    def _without_slash(self, scope: Scope) -> Scope:
        """Remove the slash at the end of a path if one of the proxy's own routes is meant; what is
        forwarded keeps it, since the backend may have a redirect from the path without."""
        path, raw_path = scope["path"].removesuffix("/"), scope.get("raw_path") or b""
        own = {**scope, "path": path, "raw_path": raw_path.removesuffix(b"/")}
        is_own = any(route.matches(own)[0] is Match.FULL for route in self.own_routes)
        return own if is_own else scope


def create_app(settings: Settings | None = None) -> ProxyApp:
    """Create the proxy's ASGI app; two apps share nothing.

    The last route forwards the requests without a route of their own, as far as
    `proxy.forwarded_paths` allows it: put routes that you add in front of it.

    Args:
        settings: None: the defaults.
    """
    state = ProxyState(settings or Settings())
    dashboard = Dashboard(state)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with state.lifespan(), dashboard.history:
            yield

    app = ProxyApp(
        lifespan=lifespan,
        exception_handlers={
            RequestError: on_request_error,
            ClientDisconnectedError: _on_disconnect,
            Exception: on_internal_error,
        },
    )
    app.state.cache_sync, app.state.engines = state.sync, state.engines
    app.state.error_bar = state.error_bar
    app.state.metrics, app.state.bodies = state.metrics, state.bodies
    paths = ForwardedPaths(state.settings.proxy.forwarded_paths)
    passthrough = Passthrough(state, paths=paths)
    completions = _completions(state)
    app.direct = completions
    app.own_routes = [
        *(Route(path, endpoint, methods=["POST"]) for path, endpoint in completions.items()),
        *SessionRoutes(state).routes(),
        report_route(state),
        explain_route(state),
        *StatusRoutes(state).routes(),
        *dashboard.routes(),
    ]
    app.router.redirect_slashes = False
    app.router.routes += [
        *app.own_routes,
        Route("/", _Home(dashboard, passthrough)),
        Route("/{path:path}", passthrough),
    ]
    app.router.default = passthrough  # no route's path matches line breaks
    return app


def _completions(state: ProxyState) -> dict[str, Completions]:
    return {
        wire.path: Completions(
            state, endpoint=wire.endpoint, has_stream_options=wire.has_stream_options
        )
        for wire in WIRES
    }


class _Home:
    """`GET /`: the dashboard for browsers, and where everything is for others."""

    def __init__(self, dashboard: Dashboard, passthrough: ASGIApp) -> None:
        self._dashboard, self._passthrough = dashboard, passthrough

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._passthrough
        if scope["method"] in ("GET", "HEAD"):
            is_browser = b"text/html" in dict(scope["headers"]).get(b"accept", b"")
            app = await self._dashboard.page(Request(scope)) if is_browser else JSONResponse(_HOME)
            app.headers["vary"] = "accept"
        await app(scope, receive, send)


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # never received: the client has disconnected
