"""Build OpenAI response objects: completions, stream chunks, usage, errors."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, Literal

from ragboost.engine.runtime.request import Reused
from ragboost.errors import RequestError


def usage(
    *,
    prompt_tokens: int,
    completion_tokens: int,
    cached_tokens: int,
    reused: Reused | None = None,
) -> dict[str, Any]:
    """The `usage` object; says always how many prompt tokens had exact KV in a cache.

    Where chunks were to be reused, `ragboost` says of all prompt tokens where their KV came from.
    """
    result: dict[str, Any] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
    if reused is not None:
        result["ragboost"] = {
            "exact_cached_tokens": cached_tokens,
            "approx_cached_tokens": reused.approximate,
            "recomputed_tokens": reused.recomputed,
            "computed_tokens": prompt_tokens
            - cached_tokens
            - reused.approximate
            - reused.recomputed,
        }
    return result


def error(message: str, *, kind: str, param: str | None = None, code: str) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def request_error(problem: RequestError) -> dict[str, Any]:
    """The error object of a refused request."""
    return error(
        str(problem),
        kind="server_error" if problem.status >= 500 else "invalid_request_error",
        param=problem.param,
        code=getattr(problem, "code", "invalid_value"),
    )


@dataclass(frozen=True, slots=True)
class Shape:
    """The response objects of one request, chat or text.

    Attributes:
        kind: which of the two endpoints it is.
        model: name to show.
        id, created: of the response, the same in all chunks.
    """

    kind: Literal["chat", "text"]
    model: str
    id: str = field(default="", init=False)
    created: int = field(default_factory=lambda: int(time.time()), init=False)

    def __post_init__(self) -> None:
        prefix = "chatcmpl" if self.kind == "chat" else "cmpl"
        object.__setattr__(self, "id", f"{prefix}-{uuid.uuid4().hex}")

    def whole(self, text: str, *, finish_reason: str, usage: dict[str, Any]) -> dict[str, Any]:
        """The answer of a request that does not stream."""
        if self.kind == "chat":
            content: dict[str, Any] = {"message": {"role": "assistant", "content": text}}
        else:
            content = {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        name = "chat.completion" if self.kind == "chat" else "text_completion"
        return {**self._head(name), "choices": [choice], "usage": usage}

    def chunk(
        self, text: str, *, is_first: bool, finish_reason: str | None, has_usage: bool
    ) -> dict[str, Any]:
        """One event of a stream; `usage` is null in it where the last event will carry one."""
        if self.kind == "chat":
            role = {"role": "assistant"} if is_first else {}
            content: dict[str, Any] = {"delta": {**role, "content": text}}
        else:
            content = {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": finish_reason}
        chunk = {**self._head(self._chunk_name), "choices": [choice]}
        return {**chunk, "usage": None} if has_usage else chunk

    def usage_chunk(self, usage: dict[str, Any]) -> dict[str, Any]:
        """The last event of a stream with `stream_options.include_usage`."""
        return {**self._head(self._chunk_name), "choices": [], "usage": usage}

    @property
    def _chunk_name(self) -> str:
        return "chat.completion.chunk" if self.kind == "chat" else "text_completion"

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self.id, "object": name, "created": self.created, "model": self.model}
