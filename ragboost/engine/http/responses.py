"""Build OpenAI response objects, and send them, whole or as server-sent events, until the client
disconnects."""

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, Literal, NamedTuple, TypeVar

import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive

from ragboost.chunk_cache.core.request import PromptReport, TokenOrigins
from ragboost.chunk_cache.http.usage import with_report
from ragboost.engine.runtime.request import Scores

Kind = Literal["chat", "text"]


class TextPiece(NamedTuple):
    """Text that has become final, possibly empty, and the counts of its request so far."""

    text: str
    finish_reason: str | None  # set on the last piece
    completion_tokens: int
    cached_tokens: int  # prompt tokens served from exact cached KV
    origins: TokenOrigins | None = None  # of the prompt, if it reuses chunks or has a graph
    scores: Scores = ()


class ResponseBuilder:
    """Builds the response objects of one completion; `model` is its name in the API."""

    def __init__(self, kind: Kind, model: str, *, num_prompt_tokens: int) -> None:
        self._is_chat = kind == "chat"
        self._name = "chat.completion" if self._is_chat else "text_completion"
        self._chunk_name = "chat.completion.chunk" if self._is_chat else "text_completion"
        self._id = f"{'chatcmpl' if self._is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._num_prompt_tokens = num_prompt_tokens

    def whole(self, text: str, last: TextPiece) -> dict[str, Any]:
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        return self._object(self._name, [_choice(content, last)], usage=self._usage(last))

    def chunk(self, piece: TextPiece, *, has_usage: bool) -> dict[str, Any]:
        """Return one event of a stream; its `usage` is null if a last event will have one."""
        content: dict[str, Any] = {"text": piece.text}
        if self._is_chat:
            role = {"role": "assistant"} if piece.completion_tokens == 1 else {}
            content = {"delta": {**role, "content": piece.text}}
        usage = {"usage": None} if has_usage else {}
        return self._object(self._chunk_name, [_choice(content, piece)], **usage)

    def usage_chunk(self, last: TextPiece) -> dict[str, Any]:
        return self._object(self._chunk_name, [], usage=self._usage(last))

    def _object(self, name: str, choices: list[dict[str, Any]], **usage: Any) -> dict[str, Any]:
        head = {"id": self._id, "object": name, "created": self._created, "model": self._model}
        return {**head, "choices": choices, **usage}

    def _usage(self, last: TextPiece) -> dict[str, Any]:
        num_prompt, cached, origins = self._num_prompt_tokens, last.cached_tokens, last.origins
        usage: dict[str, Any] = {
            "prompt_tokens": num_prompt,
            "completion_tokens": last.completion_tokens,
            "total_tokens": num_prompt + last.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return usage if origins is None else with_report(usage, PromptReport(origins))


def _choice(content: dict[str, Any], piece: TextPiece) -> dict[str, Any]:
    return {"index": 0, **content, "logprobs": None, "finish_reason": piece.finish_reason}


T = TypeVar("T")

DONE = b"data: [DONE]\n\n"


class ClientLeftError(Exception): ...


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


async def stream(events: AsyncGenerator[bytes, None], receive: Receive) -> Response:
    """Return a stream once its first event is there: an error before it is an ordinary response."""
    first = await unless_disconnected(anext(events), receive)

    async def whole() -> AsyncGenerator[bytes, None]:
        try:
            yield first
            async for data in events:
                yield data
        finally:
            await events.aclose()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(whole(), media_type="text/event-stream", headers=headers)


async def unless_disconnected(work: Awaitable[T], receive: Receive) -> T:
    worker = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientLeftError
        return worker.result()
    finally:
        for task in (worker, watcher):
            task.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
