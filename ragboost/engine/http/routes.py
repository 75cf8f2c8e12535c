"""HTTP routes of the engine, in OpenAI's and vLLM's shapes."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from ragboost.chunk_cache.http.fields import read_fields
from ragboost.engine.http import schemas
from ragboost.engine.http.completions import CompletionService
from ragboost.engine.http.metrics import CONTENT_TYPE
from ragboost.engine.http.protocol import check_token_ids
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.errors import RequestError

_BODIES: tuple[type[BaseModel], ...] = (
    schemas.ChatCompletionRequest,
    schemas.CompletionRequest,
    schemas.TokenizeRequest,
    schemas.DetokenizeRequest,
)
_REF = "#/components/schemas/{model}"
_SESSION = {"name": "x-session-id", "in": "header", "schema": {"type": "string"}}
_ERRORS: dict[int | str, dict[str, Any]] = {"4XX": {"model": schemas.ErrorResponse}}
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

router = APIRouter(responses=_ERRORS)


def body_schemas() -> dict[str, Any]:
    """Return the schemas of request bodies, which the routes read themselves."""
    _, schema = models_json_schema([(model, "validation") for model in _BODIES], ref_template=_REF)
    definitions: dict[str, Any] = schema["$defs"]
    return definitions


def _body(model: type[BaseModel], **more: Any) -> dict[str, Any]:
    schema = {"$ref": _REF.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}, **more}


def _service(request: Request) -> CompletionService:
    service: CompletionService = request.app.state.service
    return service


@router.post(
    "/v1/chat/completions",
    response_model=schemas.Completion,
    responses=_STREAM,
    openapi_extra=_body(schemas.ChatCompletionRequest, parameters=[_SESSION]),
)
async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    return await _service(request).answer(request, "chat")


@router.post(
    "/v1/completions",
    response_model=schemas.Completion,
    responses=_STREAM,
    openapi_extra=_body(schemas.CompletionRequest, parameters=[_SESSION]),
)
async def completions(request: Request) -> Response:
    """Continue a prompt, whole or as a stream."""
    return await _service(request).answer(request, "text")


@router.get("/v1/models")
async def models(request: Request) -> schemas.ModelList:
    """List the served model."""
    loaded = _service(request).loaded
    card = schemas.ModelCard(id=loaded.name, max_model_len=loaded.runner.max_length)
    return schemas.ModelList(data=[card])


@router.post("/tokenize", openapi_extra=_body(schemas.TokenizeRequest))
async def tokenize(request: Request) -> schemas.TokenizeResponse:
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
    return schemas.TokenizeResponse(
        count=len(ids),
        max_model_len=service.loaded.runner.max_length,
        tokens=ids,
        token_strs=tokenizer.token_strings(ids) if body.get("return_token_strs") else None,
    )


@router.post("/detokenize", openapi_extra=_body(schemas.DetokenizeRequest))
async def detokenize(request: Request) -> schemas.DetokenizeResponse:
    """Return the text of token ids, special tokens included."""
    service = _service(request)
    body = await service.read_body(request)
    tokens, vocab_size = body.get("tokens"), service.loaded.runner.vocab_size
    if not isinstance(tokens, list):
        raise RequestError("tokens must be a list of token ids", param="tokens")
    ids = check_token_ids(tokens, "tokens", vocab_size=vocab_size)
    text = service.loaded.tokenizer.decode(ids, skip_special_tokens=False)
    return schemas.DetokenizeResponse(prompt=text)


@router.get("/health", response_class=Response, responses={503: {"description": "Failed"}})
async def health(request: Request) -> Response:
    """Return 200 while the engine computes, else 503."""
    return Response(status_code=200 if _service(request).engine.is_healthy else 503)


@router.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return all metrics in Prometheus' text format."""
    return Response(_service(request).metrics.render(), headers={"content-type": CONTENT_TYPE})


@router.get("/kv_event_sources")
async def kv_event_sources(request: Request) -> dict[str, schemas.EventEndpoint]:
    """Return the addresses of published cache events by data-parallel rank."""
    publisher: EventPublisher | None = request.app.state.publisher
    if publisher is None:
        return {}
    return {
        "0": schemas.EventEndpoint(
            endpoint=publisher.endpoint,
            replay_endpoint=publisher.replay_endpoint,
            topic=publisher.topic,
        )
    }


@router.get("/chunk_reuse")
async def chunk_reuse(request: Request) -> schemas.ChunkReuseInfo:
    """Return whether requests may ask for chunk reuse, and what they get by default."""
    return schemas.ChunkReuseInfo(**_service(request).reuse.describe(), graphs=True)


@router.post("/reset_prefix_cache", response_class=Response)
async def reset_prefix_cache(request: Request) -> Response:
    """Empty the prefix cache; running requests continue."""
    await asyncio.wrap_future(_service(request).engine.reset_prefix_cache())
    return Response(status_code=200)
