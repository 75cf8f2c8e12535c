"""Answer completion requests: read the body, tokenise the prompt, generate, respond. Joins the
engine thread, the tokenizer's thread and the event loop."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import orjson
from starlette.requests import Request
from starlette.responses import Response

from ragboost.chunk_cache.core.request import ReuseDefaults
from ragboost.chunk_cache.fields import read_fields
from ragboost.chunk_cache.http.answer_scores import TokenScores, read_answer
from ragboost.chunk_cache.http.asgi import refusal
from ragboost.engine.http.metrics import EngineMetrics
from ragboost.engine.http.prompts import Prompts
from ragboost.engine.http.protocol import ApiError, GenerationRequest
from ragboost.engine.http.responses import (
    DONE,
    Kind,
    ResponseBuilder,
    TextPiece,
    event,
    stream,
    unless_disconnected,
)
from ragboost.engine.http.schemas import ChatCompletionRequest, CompletionRequest
from ragboost.engine.loading import LoadedModel
from ragboost.engine.runtime.engine import Engine
from ragboost.engine.runtime.request import EngineRequest, Output, PromptTokens
from ragboost.engine.tokenizer import TextStream
from ragboost.errors import RequestError, json_type

T = TypeVar("T")
_DEFAULT_MAX_TOKENS = 256  # of chat requests that set no limit
_MAX_BODY_BYTES = 32 * 1024 * 1024


class CompletionService:
    """Answers completion requests with one engine."""

    def __init__(
        self,
        engine: Engine,
        loaded: LoadedModel,
        *,
        reuse: ReuseDefaults,
    ) -> None:
        self.engine = engine
        self.loaded = loaded
        self.reuse = reuse
        # Call it through `in_thread`.
        self.prompts = Prompts(loaded, reuse=reuse)
        self.metrics = EngineMetrics(engine)
        # One thread: concurrent encodings are not safe.
        self._tokenizing = ThreadPoolExecutor(1, thread_name_prefix="ragboost-tokenize")

    def close(self) -> None:
        self._tokenizing.shutdown()

    async def in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._tokenizing, work)

    async def read_body(self, request: Request) -> dict[str, Any]:
        """Read a JSON object. Raises `RequestError`, also if it names another model."""
        data = bytearray()
        async for part in request.stream():
            data += part
            if len(data) > _MAX_BODY_BYTES:
                raise ApiError(
                    f"the body is larger than {_MAX_BODY_BYTES} bytes",
                    status=413,
                    code="body_too_large",
                )
        body = _load_json(bytes(data))
        if not isinstance(body, dict):
            raise RequestError(f"the body must be a JSON object, got a {json_type(body)}")
        model = body.get("model")
        if model is not None and model != self.loaded.name:
            raise ApiError(
                f"model {model!r} does not exist; this engine serves {self.loaded.name!r}",
                status=404,
                code="model_not_found",
                param="model",
            )
        return body

    async def answer(self, request: Request, kind: Kind) -> Response:
        body = await self.read_body(request)
        if body.get("session_id") is None:
            body["session_id"] = request.headers.get("x-session-id") or None
        fields: ChatCompletionRequest | CompletionRequest
        if kind == "chat":
            fields = read_fields(ChatCompletionRequest, body)
        else:
            fields = read_fields(CompletionRequest, body)
        prompt = await self.in_thread(lambda: self.prompts.build(fields))
        num_prompt_tokens = len(prompt.token_ids)
        max_tokens = self._max_tokens(fields, num_prompt_tokens)
        builder = ResponseBuilder(kind, self.loaded.name, num_prompt_tokens=num_prompt_tokens)
        pieces = self._generate(prompt, fields, max_tokens=max_tokens)
        if fields.stream:
            events = _events(pieces, builder, has_usage=fields.include_usage)
            return await stream(events, request.receive)
        whole = await unless_disconnected(_whole(pieces, builder), request.receive)
        return Response(orjson.dumps(whole), media_type="application/json")

    async def score(self, request: Request) -> TokenScores:
        """Score an answer that reused chunks, exactly."""
        body = await self.read_body(request)

        async def tokenize(body: dict[str, Any]) -> list[int]:
            fields: ChatCompletionRequest | CompletionRequest
            if "messages" in body:
                fields = read_fields(ChatCompletionRequest, body)
            else:
                fields = read_fields(CompletionRequest, body)
            return (await self.in_thread(lambda: self.prompts.build(fields))).token_ids

        async def tokenize_text(text: str) -> list[int]:
            encode = partial(self.loaded.tokenizer.encode, text, add_special_tokens=False)
            return await self.in_thread(encode)

        asked = await read_answer(body, tokenize, tokenize_text)
        tokens, salt = asked.tokens, asked.request.get("cache_salt")
        greedy = {"prompt": tokens, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
        fields = read_fields(CompletionRequest, greedy)
        limit = self._max_tokens(fields, len(tokens))
        pieces = self._generate(
            PromptTokens(tokens), fields, max_tokens=limit, num_scored=asked.num_scored
        )
        piece = [piece async for piece in pieces][-1]
        given, best = zip(*piece.scores, strict=True)
        num_computed = len(tokens) - piece.cached_tokens
        return TokenScores(given, best, piece.finish_reason == "stop", num_computed)

    def _max_tokens(self, fields: GenerationRequest, num_prompt_tokens: int) -> int:
        limit = min(self.loaded.runner.max_length, self.engine.scheduler.max_running_tokens)
        room, asked = limit - num_prompt_tokens, fields.num_tokens
        if room >= 1 and (asked is None or asked <= room):
            return min(_DEFAULT_MAX_TOKENS, room) if asked is None else asked
        also = f" and {asked} tokens were asked for" if asked is not None else ""
        raise ApiError(
            f"the engine takes {limit} tokens at most; the prompt has {num_prompt_tokens}{also}: "
            "shorten one of them, or raise the lower one of engine.max_model_len and "
            "engine.max_running_tokens",
            status=400,
            code="context_length_exceeded",
            param="messages" if asked is None or room < 1 else "max_tokens",
        )

    async def _generate(
        self,
        prompt: PromptTokens,
        fields: GenerationRequest,
        *,
        max_tokens: int,
        num_scored: int = 0,
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield a piece per token. Closing the generator early aborts the request. Raises
        `ApiError` if the engine is full, has stopped, or fails."""
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def emit(output: Output) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        request = EngineRequest(
            prompt,
            fields.sampling(max_tokens),
            emit=emit,
            stop_ids=self.loaded.stop_ids,
            salt=fields.cache_salt,
            session_id=fields.session_id,
            num_scored=num_scored,
        )
        begin = time.perf_counter()
        if not self.engine.submit(request):
            self.metrics.finished.labels("rejected").inc()
            full = ("the engine is full; try again", "engine_overloaded", 1)
            ended = ("the engine has stopped; see its log for the reason", "engine_stopped", None)
            message, code, retry_after_s = full if self.engine.is_healthy else ended
            raise ApiError(message, status=503, code=code, retry_after_s=retry_after_s)
        text_stream = TextStream(self.loaded.tokenizer, stop=fields.stop)
        count, reason = 0, None
        try:
            while reason is None:
                token, reason, cached, origins, scores = await outputs.get()
                if token is None:
                    raise ApiError("the engine failed", status=500, code="internal_error")
                count += 1
                text = "" if reason == "stop" else text_stream.push(token)
                if reason is not None:
                    text += text_stream.finish()
                if text_stream.is_stopped:
                    reason = "stop"
                if count == 1:
                    self.metrics.ttft.observe(time.perf_counter() - begin)
                self.metrics.generated_tokens.inc()
                yield TextPiece(text, reason, count, cached, origins, scores)
        finally:
            self.engine.abort(request)  # no effect if it has ended by itself
            self.metrics.finished.labels(reason or "abort").inc()


async def _whole(
    pieces: AsyncGenerator[TextPiece, None], builder: ResponseBuilder
) -> dict[str, Any]:
    answer = [piece async for piece in pieces]
    return builder.whole("".join(piece.text for piece in answer), answer[-1])


async def _events(
    pieces: AsyncGenerator[TextPiece, None], builder: ResponseBuilder, *, has_usage: bool
) -> AsyncGenerator[bytes, None]:
    piece = None
    try:
        async for piece in pieces:
            yield event(builder.chunk(piece, has_usage=has_usage))
    except ApiError as problem:
        if piece is None:
            raise  # nothing was sent yet: an ordinary error response
        yield event(refusal(problem))
        return
    finally:
        await pieces.aclose()
    assert piece is not None, "a generation without a token"
    if has_usage:
        yield event(builder.usage_chunk(piece))
    yield DONE


def _load_json(data: bytes) -> Any:
    try:
        return json.loads(data)  # unlike orjson, accepts lone surrogates, as other engines do
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not valid JSON: {error}") from None
