"""Build OpenAI response objects: completions, stream chunks, usage, errors."""

import time
import uuid
from typing import Any, Literal, NamedTuple

from ragboost.engine.runtime.request import ReusedTokens
from ragboost.errors import RequestError

Kind = Literal["chat", "text"]


class TextPiece(NamedTuple):
    """Text that has become final, and the counts of its request so far.

    Attributes:
        text: possibly empty.
        finish_reason: set on the last piece.
        completion_tokens: number of generated tokens.
        cached_tokens: prompt tokens served from exact cached KV.
        reused: other reused prompt tokens; None if the request is exact.
    """

    text: str
    finish_reason: str | None
    completion_tokens: int
    cached_tokens: int
    reused: ReusedTokens | None = None


def usage(prompt_tokens: int, piece: TextPiece) -> dict[str, Any]:
    """Return the `usage` object, with the sources of all prompt tokens if chunks were reused."""
    cached, reused = piece.cached_tokens, piece.reused
    result: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": piece.completion_tokens,
        "total_tokens": prompt_tokens + piece.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    if reused is not None:
        result["ragboost"] = {
            "exact_cached_tokens": cached,
            "approx_cached_tokens": reused.approximate,
            "recomputed_tokens": reused.recomputed,
            "computed_tokens": prompt_tokens - cached - sum(reused),
        }
    return result


def error(message: str, *, kind: str, param: str | None = None, code: str) -> dict[str, Any]:
    """Return OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def request_error(problem: RequestError) -> dict[str, Any]:
    """Return the error object of a rejected request."""
    return error(
        str(problem),
        kind="server_error" if problem.status >= 500 else "invalid_request_error",
        param=problem.param,
        code=getattr(problem, "code", "invalid_value"),
    )


class ResponseBuilder:
    """Builds the response objects of one completion.

    Args:
        kind: chat or text completion.
        model: name in the API.
    """

    def __init__(self, kind: Kind, model: str) -> None:
        self._is_chat = kind == "chat"
        self._name = "chat.completion" if self._is_chat else "text_completion"
        self._chunk_name = "chat.completion.chunk" if self._is_chat else "text_completion"
        prefix = "chatcmpl" if self._is_chat else "cmpl"
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def whole(self, text: str, *, finish_reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the response of a request that does not stream."""
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": text}}
        return {
            **self._head(self._name),
            "choices": [_choice(content, finish_reason)],
            "usage": usage,
        }

    def chunk(
        self, text: str, *, is_first: bool, finish_reason: str | None, has_usage: bool
    ) -> dict[str, Any]:
        """Return one event of a stream; its `usage` is null if a last event will have one."""
        content: dict[str, Any] = {"text": text}
        if self._is_chat:
            role = {"role": "assistant"} if is_first else {}
            content = {"delta": {**role, "content": text}}
        chunk = {**self._head(self._chunk_name), "choices": [_choice(content, finish_reason)]}
        return {**chunk, "usage": None} if has_usage else chunk

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the last event of a stream with `stream_options.include_usage`."""
        return {**self._head(self._chunk_name), "choices": [], "usage": usage}

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self._id, "object": name, "created": self._created, "model": self._model}


def _choice(content: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
