"""The HTTP routes of the engine, in OpenAI's and vLLM's shapes.

Reads bodies, calls the generator, writes answers. The computing happens elsewhere.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ragboost.chunk_cache.selection import POLICIES
from ragboost.engine.http import protocol, sse
from ragboost.engine.http import responses as replies
from ragboost.engine.http.extension import ReuseDefaults
from ragboost.engine.http.generation import Generator, PromptTokens, TextPiece
from ragboost.engine.http.metrics import CONTENT_TYPE, EngineMetrics
from ragboost.engine.http.prompts import Prompts
from ragboost.engine.http.protocol import ApiError, GenerationRequest
from ragboost.engine.loading import LoadedModel
from ragboost.engine.runtime.core import Engine
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.errors import RequestError

T = TypeVar("T")


class Api:
    """Handlers over one engine."""

    def __init__(
        self,
        engine: Engine,
        loaded: LoadedModel,
        *,
        publisher: EventPublisher | None,
        default_max_tokens: int,
        max_body_bytes: int,
        reuse: ReuseDefaults,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._publisher = publisher
        self._max_body_bytes = max_body_bytes
        self._reuse = reuse
        self._prompts = Prompts(
            loaded.tokenizer,
            vocab_size=loaded.runner.vocab_size,
            reuse=reuse,
            graphs=loaded.graphs,
        )
        self._metrics = EngineMetrics(engine)
        self._generator = Generator(
            engine, loaded, self._metrics, default_max_tokens=default_max_tokens
        )
        # One thread: the tokenizer does not take two texts at once.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="ragboost-tokenize")

    def routes(self) -> list[Route]:
        """All routes."""
        return [
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/models", self.models),
            Route("/tokenize", self.tokenize, methods=["POST"]),
            Route("/detokenize", self.detokenize, methods=["POST"]),
            Route("/health", self.health),
            Route("/metrics", self.metrics),
            Route("/kv_event_sources", self.kv_event_sources),
            Route("/chunk_reuse", self.chunk_reuse),
            Route("/reset_prefix_cache", self.reset_prefix_cache, methods=["POST"]),
        ]

    def close(self) -> None:
        """Stop the tokenizing thread."""
        self._tokenizing.shutdown()

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        body = await self._body(request)
        wanted = protocol.parse_generation(body, session_header=_session(request))
        prompt = await self._in_thread(lambda: self._prompts.chat(body))
        return await self._answer(request, "chat", prompt, wanted)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        body = {"max_tokens": 16, **await self._body(request)}
        wanted = protocol.parse_generation(body, session_header=_session(request))
        prompt = await self._in_thread(lambda: self._prompts.text(body))
        return await self._answer(request, "text", prompt, wanted)

    async def models(self, _request: Request) -> Response:
        """GET /v1/models"""
        model = {
            "id": self._loaded.name,
            "object": "model",
            "created": 0,
            "owned_by": "ragboost",
            "max_model_len": self._loaded.runner.max_length,
        }
        return _json({"object": "list", "data": [model]})

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: of a `prompt`, or of `messages` as a chat request would have them."""
        body = await self._body(request)
        if "messages" in body:
            ids = await self._in_thread(lambda: self._prompts.chat_ids(body))
        else:
            text = body.get("prompt")
            if not isinstance(text, str):
                raise RequestError("prompt must be a string (or send messages)", param="prompt")
            special = body.get("add_special_tokens", True) is not False
            ids = await self._in_thread(
                lambda: self._loaded.tokenizer.encode(text, add_special_tokens=special)
            )
        strings = (
            self._loaded.tokenizer.token_strings(ids) if body.get("return_token_strs") else None
        )
        return _json(
            {
                "count": len(ids),
                "max_model_len": self._loaded.runner.max_length,
                "tokens": ids,
                "token_strs": strings,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        body = await self._body(request)
        ids = protocol.parse_token_ids(
            body.get("tokens"), "tokens", vocab_size=self._loaded.runner.vocab_size
        )
        return _json({"prompt": self._loaded.tokenizer.decode(ids, skip_special_tokens=False)})

    async def health(self, _request: Request) -> Response:
        """GET /health: 200 while the engine computes, else 503."""
        return Response(status_code=200 if self._engine.is_healthy else 503)

    async def metrics(self, _request: Request) -> Response:
        """GET /metrics"""
        return Response(self._metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def kv_event_sources(self, _request: Request) -> Response:
        """GET /kv_event_sources: where cache events are published, by data-parallel rank."""
        publisher = self._publisher
        if publisher is None:
            return _json({})
        source = {
            "publisher": "zmq",
            "endpoint": publisher.endpoint,
            "replay_endpoint": publisher.replay_endpoint,
            "topic": publisher.topic,
        }
        return _json({"0": source})

    async def chunk_reuse(self, _request: Request) -> Response:
        """GET /chunk_reuse: whether requests may ask for it, and what they get by default."""
        defaults = self._reuse
        return _json(
            {
                "is_possible": defaults.refusal is None,
                "refusal": defaults.refusal,
                "default": "approx" if defaults.is_approx else "exact",
                "policy": defaults.approx.policy,
                "ratio": defaults.approx.ratio,
                "policies": list(POLICIES),
            }
        )

    async def reset_prefix_cache(self, _request: Request) -> Response:
        """POST /reset_prefix_cache"""
        await asyncio.wrap_future(self._engine.reset_prefix_cache())
        return Response(status_code=200)

    async def _answer(
        self, request: Request, kind: Any, prompt: PromptTokens, wanted: GenerationRequest
    ) -> Response:
        # Refuse before the stream begins.
        self._generator.max_tokens(wanted, len(prompt.token_ids))
        shape = replies.Shape(kind, self._loaded.name)
        if wanted.is_stream:
            return sse.EventStreamResponse(self._events(prompt, wanted, shape))
        return _json(await sse.unless_disconnected(request, self._whole(prompt, wanted, shape)))

    async def _whole(
        self, prompt: PromptTokens, wanted: GenerationRequest, shape: replies.Shape
    ) -> dict[str, Any]:
        pieces = [piece async for piece in self._generator.generate(prompt, wanted)]
        last = pieces[-1]
        return shape.whole(
            "".join(piece.text for piece in pieces),
            finish_reason=last.finish_reason or "stop",
            usage=_usage(prompt, last),
        )

    async def _events(
        self, prompt: PromptTokens, wanted: GenerationRequest, shape: replies.Shape
    ) -> AsyncGenerator[bytes, None]:
        piece = None
        pieces = self._generator.generate(prompt, wanted)
        try:
            async for piece in pieces:
                yield sse.event(
                    shape.chunk(
                        piece.text,
                        is_first=piece.completion_tokens == 1,
                        finish_reason=piece.finish_reason,
                        has_usage=wanted.include_usage,
                    )
                )
        except ApiError as problem:
            if piece is None:
                raise  # nothing was sent yet: a plain error answer
            yield sse.event(replies.request_error(problem))
            return
        finally:
            await pieces.aclose()
        assert piece is not None, "a generation without a token"
        if wanted.include_usage:
            yield sse.event(shape.usage_chunk(_usage(prompt, piece)))
        yield sse.DONE

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    async def _body(self, request: Request) -> dict[str, Any]:
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > self._max_body_bytes:
                raise ApiError(
                    f"the body is larger than {self._max_body_bytes} bytes",
                    status=413,
                    code="body_too_large",
                )
        body = _load_json(bytes(data))
        if not isinstance(body, dict):
            raise RequestError(f"the body must be a JSON object, got a {type(body).__name__}")
        model = body.get("model")
        if model is not None and model != self._loaded.name:
            raise ApiError(
                f"model {model!r} does not exist; this engine serves {self._loaded.name!r}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return body


def _usage(prompt: PromptTokens, last: TextPiece) -> dict[str, Any]:
    return replies.usage(
        prompt_tokens=len(prompt.token_ids),
        completion_tokens=last.completion_tokens,
        cached_tokens=last.cached_tokens,
        reused=last.reused,
    )


def _load_json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(data)  # takes lone surrogates, as other engines do
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None


def _session(request: Request) -> str | None:
    return request.headers.get("x-session-id")


def _json(data: Any) -> Response:
    return Response(orjson.dumps(data), media_type="application/json")
