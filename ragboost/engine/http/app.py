"""The engine as an ASGI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ragboost.config import EngineSettings
from ragboost.engine.http import responses as replies
from ragboost.engine.http.api import Api
from ragboost.engine.http.extension import Approx, ReuseDefaults
from ragboost.engine.http.sse import ClientLeftError
from ragboost.engine.loading import load_model, make_engine
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.errors import RequestError


def create_engine_app(settings: EngineSettings | None = None) -> Starlette:
    """Load the model and build its OpenAI-compatible server.

    The engine's thread starts and ends with the application's lifespan, and an application can be
    run once. Its `Engine` is at `app.state.engine`, the model at `app.state.loaded`.

    Raises:
        ConfigError: no such model, one that cannot be served, an address that cannot be bound.
    """
    settings = settings or EngineSettings()
    loaded = load_model(settings)
    publisher = _publisher(settings)
    engine = make_engine(loaded, settings, publish=publisher.publish if publisher else None)
    api = Api(
        engine,
        loaded,
        publisher=publisher,
        default_max_tokens=settings.default_max_tokens,
        max_body_bytes=settings.max_body_bytes,
        reuse=ReuseDefaults(
            is_approx=settings.reuse == "approx",
            approx=Approx(settings.reuse_policy, settings.reuse_ratio),
            refusal=loaded.reuse_refusal,
        ),
    )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        engine.start()
        try:
            yield
        finally:
            engine.stop()
            api.close()
            if publisher is not None:
                publisher.close()

    app = Starlette(
        routes=api.routes(),
        lifespan=lifespan,
        exception_handlers={
            RequestError: _refused,
            ClientLeftError: _client_left,
            HTTPException: _http_error,
            Exception: _failed,
        },
    )
    app.state.engine, app.state.loaded = engine, loaded
    return app


def with_events(settings: EngineSettings) -> EngineSettings:
    """The settings with cache events for a proxy in the same process: on free ports of loopback,
    unless they name an address."""
    if settings.kv_events_endpoint is not None:
        return settings
    free = "tcp://127.0.0.1:*"
    return settings.model_copy(
        update={"kv_events_endpoint": free, "kv_events_replay_endpoint": free}
    )


def _publisher(settings: EngineSettings) -> EventPublisher | None:
    if settings.kv_events_endpoint is None:
        return None
    return EventPublisher(
        settings.kv_events_endpoint,
        block_size=settings.block_size,
        replay_endpoint=settings.kv_events_replay_endpoint,
        topic=settings.kv_events_topic,
    )


async def _refused(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestError), problem
    headers = {"retry-after": "1"} if problem.status == 503 else None
    return Response(
        orjson.dumps(replies.request_error(problem)),
        status_code=problem.status,
        headers=headers,
        media_type="application/json",
    )


async def _client_left(_request: Request, _problem: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's number, for access logs


async def _http_error(_request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException), problem
    body = replies.error(problem.detail, kind="invalid_request_error", code="not_found")
    return Response(orjson.dumps(body), problem.status_code, media_type="application/json")


async def _failed(_request: Request, _problem: Exception) -> Response:
    body = replies.error("internal error", kind="server_error", code="internal_error")
    return Response(orjson.dumps(body), 500, media_type="application/json")
