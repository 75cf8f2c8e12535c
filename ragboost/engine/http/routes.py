"""HTTP routes of the engine, in OpenAI's and vLLM's shapes."""

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ragboost.chunk_cache.fields import read_fields
from ragboost.chunk_cache.http.answer_scores import CHECK
from ragboost.engine.http import schemas
from ragboost.engine.http.completions import CompletionService
from ragboost.engine.http.metrics import CONTENT_TYPE
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.errors import RequestError


def _service(request: Request) -> CompletionService:
    service: CompletionService = request.app.state.service
    return service


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await _service(request).answer(request, "chat")


async def completions(request: Request) -> Response:
    """Continue a prompt, whole or as a stream."""
    return await _service(request).answer(request, "text")


async def models(request: Request) -> Response:
    """List the served model."""
    loaded = _service(request).loaded
    card = {"id": loaded.name, "object": "model", "created": 0, "owned_by": "ragboost"}
    card["max_model_len"] = loaded.runner.max_length
    return JSONResponse({"object": "list", "data": [card]})


async def tokenize(request: Request) -> Response:
    """Return the token ids of a prompt, or of messages as a chat request would have them."""
    service = _service(request)
    body = await service.read_body(request)
    tokenizer = service.loaded.tokenizer
    if "messages" in body:
        chat = read_fields(schemas.ChatFields, body)
        ids = await service.in_thread(lambda: service.prompts.chat_ids(chat))
    else:
        text = body.get("prompt")
        if not isinstance(text, str):
            raise RequestError("prompt must be a string (or send messages)", param="prompt")
        special = body.get("add_special_tokens", True) is not False
        ids = await service.in_thread(lambda: tokenizer.encode(text, add_special_tokens=special))
    length = service.loaded.runner.max_length
    return JSONResponse({"count": len(ids), "max_model_len": length, "tokens": ids})


async def health(request: Request) -> Response:
    """Return 200 while the engine computes, else 503."""
    return Response(status_code=200 if _service(request).engine.is_healthy else 503)


async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    return Response(_service(request).metrics.render(), headers={"content-type": CONTENT_TYPE})


async def kv_event_sources(request: Request) -> Response:
    """Return the addresses of published cache events by data-parallel rank."""
    publisher: EventPublisher | None = request.app.state.publisher
    if publisher is None:
        return JSONResponse({})
    source = {"publisher": "zmq", "endpoint": publisher.endpoint}
    return JSONResponse({"0": {**source, "replay_endpoint": publisher.replay_endpoint}})


async def chunk_reuse(request: Request) -> Response:
    """Return whether requests may ask for chunk reuse, and what they get by default."""
    return JSONResponse({**_service(request).reuse.describe(), "graphs": True})


async def check_answer(request: Request) -> Response:
    """Score an answer that reused chunks as the exact model would, without decoding."""
    return JSONResponse((await _service(request).score(request))._asdict())


async def reset_prefix_cache(request: Request) -> Response:
    """Empty the prefix cache; running requests continue."""
    await asyncio.wrap_future(_service(request).engine.reset_prefix_cache())
    return Response(status_code=200)


ROUTES = (
    Route("/v1/chat/completions", chat_completions, methods=["POST"]),
    Route("/v1/completions", completions, methods=["POST"]),
    Route("/v1/models", models),
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/health", health),
    Route("/metrics", metrics),
    Route("/kv_event_sources", kv_event_sources),
    Route("/chunk_reuse", chunk_reuse),
    Route(CHECK, check_answer, methods=["POST"]),
    Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
)
