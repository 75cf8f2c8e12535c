"""Put the proxy together: one app, with everything that it remembers hanging on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
from ragboost.proxy.dispatch import Dispatcher
from ragboost.proxy.errors import error_response
from ragboost.proxy.metrics import Metrics
from ragboost.proxy.routes import Completions, Passthrough, Reports, Status
from ragboost.proxy.running_turns import RunningTurns
from ragboost.proxy.sync import CacheSync
from ragboost.proxy.tenants import Tenants
from ragboost.sessions import make_store

_BOOSTED = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
}


def create_app(settings: Settings | None = None) -> FastAPI:
    """Make the proxy's app.

    Two apps share nothing. Everything that is no route of ours goes to the backend, so that routes
    added later must be put in front of the last one.

    Args:
        settings: None: the defaults.
    """
    settings = settings or Settings()
    backends = Backends.of(settings)
    metrics = Metrics()
    tenants = Tenants(settings)
    sync = CacheSync(settings, backends=backends, tenants=tenants)
    metrics.watch(sync)
    boosting = Boosting(settings, metrics, tenants=tenants, sync=sync)
    dispatcher = Dispatcher(settings, backends=backends, tenants=tenants)
    store = make_store(settings.session)
    turns = RunningTurns()

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await store.open()
        await backends.open()
        try:
            await sync.open()
            yield
        finally:
            await turns.drain()
            await store.close()
            dispatcher.close()
            await sync.close()
            await backends.close()

    app = FastAPI(
        title="RAGBoost",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these paths are the backend's
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.cache_sync = sync
    app.add_exception_handler(Exception, _internal_error)
    status = Status(dispatcher=dispatcher, metrics=metrics, boosting=boosting, sync=sync)
    for path, endpoint in _BOOSTED.items():
        completions = Completions(
            settings, endpoint=endpoint, dispatcher=dispatcher, metrics=metrics, boosting=boosting
        )
        app.router.routes.append(Route(path, completions, methods=["POST"]))
    app.router.routes.extend(
        session_routes(
            settings,
            dispatcher=dispatcher,
            metrics=metrics,
            boosting=boosting,
            store=store,
            turns=turns,
        )
    )
    app.router.routes.append(Route(REPORT_PATH, Reports(settings, sync=sync), methods=["POST"]))
    app.add_route("/health", status.health, methods=["GET"])
    app.add_route("/ready", status.ready, methods=["GET"])
    app.add_route("/version", status.version, methods=["GET"])
    app.add_route("/metrics", status.metrics, methods=["GET"])
    passthrough = Passthrough(settings, dispatcher=dispatcher, metrics=metrics)
    app.router.routes.append(Route("/{path:path}", passthrough))
    return app


async def _internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, "internal error in RAGBoost; its log has the traceback")
