"""Build OpenAI response objects: completions, stream chunks, usage."""

import time
import uuid
from typing import Any, Literal, NamedTuple

from ragboost.chunk_cache.core.token_origins import PromptReport, TokenOrigins
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
