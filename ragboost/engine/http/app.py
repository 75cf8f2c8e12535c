"""The engine as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ragboost.chunk_cache.http.asgi import refusal
from ragboost.config import EngineSettings
from ragboost.engine.http.completions import CompletionService
from ragboost.engine.http.responses import ClientLeftError
from ragboost.engine.http.routes import ROUTES
from ragboost.engine.loading import chunk_settings, load_model, make_engine
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.errors import RequestError, error_object


def create_engine_app(
    settings: EngineSettings | None = None, *, reuses_chunks: bool = True
) -> Starlette:
    """Load the model and build its OpenAI-compatible server, which can be run once; its lifespan is
    that of the engine's thread. Has `state.engine` and `state.loaded`. Raises `ConfigError`."""
    settings = settings or EngineSettings()
    loaded = load_model(settings, reuses_chunks=reuses_chunks)
    endpoint = settings.kv_events_endpoint
    publisher = None if endpoint is None else EventPublisher(endpoint)
    engine = make_engine(loaded, settings, publish=publisher.publish if publisher else None)
    service = CompletionService(
        engine,
        loaded,
        reuse=chunk_settings(settings).reuse_defaults(refusal=loaded.reuse_refusal),
    )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            engine.stop()
            service.close()
            if publisher is not None:
                publisher.close()

    app = Starlette(
        routes=ROUTES,
        exception_handlers={
            RequestError: _refused,
            ClientLeftError: _client_left,
            HTTPException: _http_error,
            Exception: _failed,
        },
        lifespan=lifespan,
    )
    app.state.engine, app.state.loaded = engine, loaded
    app.state.service, app.state.publisher = service, publisher
    return app


def with_events(settings: EngineSettings) -> EngineSettings:
    """Return the settings with cache events on free loopback ports, unless they name an address."""
    if settings.kv_events_endpoint is not None:
        return settings
    return settings.model_copy(update={"kv_events_endpoint": "tcp://127.0.0.1:*"})


def _error(status: int, body: dict[str, Any], **headers: str) -> Response:
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


async def _refused(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestError), problem
    after_s = problem.retry_after_s
    headers = {} if after_s is None else {"retry-after": str(after_s)}
    return _error(problem.status, refusal(problem), **headers)


async def _client_left(_request: Request, _problem: Exception) -> Response:
    return Response(status_code=499)  # never received; nginx's code, for access logs


async def _http_error(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException), problem
    body = error_object(problem.detail, kind="invalid_request_error", code="not_found")
    return _error(problem.status_code, body)


async def _failed(_request: Request, _problem: Exception) -> Response:
    return _error(500, error_object("internal error", kind="server_error", code="internal_error"))
