"""Run one request through the engine and turn its tokens into pieces of text.

Joins the engine thread and the event loop. Knows tokens and text, not HTTP.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import NamedTuple

from ragboost.engine.http.extension import Approx
from ragboost.engine.http.metrics import EngineMetrics
from ragboost.engine.http.protocol import ApiError, GenerationRequest
from ragboost.engine.loading import LoadedModel
from ragboost.engine.parts import Parts
from ragboost.engine.runtime.core import Engine
from ragboost.engine.runtime.graph import GraphPrompt
from ragboost.engine.runtime.request import EngineRequest, Output, Reused
from ragboost.engine.tokenizer import TextStream


class PromptTokens(NamedTuple):
    """What to go on from.

    Attributes:
        token_ids: the prompt.
        parts, approx: where its chunks are and how they are reused; None: it is computed exactly.
        graph: where it is computed with dependency attention.
    """

    token_ids: list[int]
    parts: Parts | None = None
    approx: Approx | None = None
    graph: GraphPrompt | None = None


class TextPiece(NamedTuple):
    """Text that has become certain; the last piece has a finish reason.

    `completion_tokens`, `cached_tokens` and `reused` are those of the request so far.
    """

    text: str
    finish_reason: str | None
    completion_tokens: int
    cached_tokens: int
    reused: Reused | None = None


class Generator:
    """Generates text; one for all requests.

    Args:
        default_max_tokens: for requests that do not say.
    """

    def __init__(
        self,
        engine: Engine,
        loaded: LoadedModel,
        metrics: EngineMetrics,
        *,
        default_max_tokens: int,
    ) -> None:
        self._engine = engine
        self._loaded = loaded
        self._metrics = metrics
        self._default_max_tokens = default_max_tokens

    def max_tokens(self, request: GenerationRequest, num_prompt_tokens: int) -> int:
        """Decide how many tokens to generate.

        Raises:
            ApiError: prompt and answer do not fit into the model.
        """
        limit = self._loaded.runner.max_length
        room = limit - num_prompt_tokens
        wanted = request.max_tokens
        if room >= 1 and (wanted is None or wanted <= room):
            return min(self._default_max_tokens, room) if wanted is None else wanted
        asked = f" and {wanted} tokens were asked for" if wanted is not None else ""
        raise ApiError(
            f"the model takes {limit} tokens at most; the prompt has {num_prompt_tokens}{asked}: "
            "shorten one of them",
            status=400,
            code="context_length_exceeded",
            param="messages" if wanted is None or room < 1 else "max_tokens",
        )

    async def generate(
        self, prompt: PromptTokens, request: GenerationRequest
    ) -> AsyncGenerator[TextPiece, None]:
        """Yield pieces, the first one with the first token. Closing the generator early aborts.

        Raises:
            ApiError: the engine has no room or has stopped (503), or fails meanwhile (500).
        """
        loop = asyncio.get_running_loop()
        outputs: asyncio.Queue[Output] = asyncio.Queue()

        def emit(output: Output) -> None:
            loop.call_soon_threadsafe(outputs.put_nowait, output)

        sequence = EngineRequest(
            prompt.token_ids,
            request.sampling(self.max_tokens(request, len(prompt.token_ids))),
            emit=emit,
            stop_ids=self._loaded.stop_ids,
            salt=request.salt,
            session_id=request.session_id,
            parts=prompt.parts,
            approx=prompt.approx,
            graph=prompt.graph,
        )
        begin = time.perf_counter()
        if not self._engine.submit(sequence):
            self._metrics.finished("rejected")
            raise self._refusal()
        reason: str | None = None
        try:
            async for piece in self._pieces(outputs, request):
                reason = piece.finish_reason
                if piece.completion_tokens == 1:
                    self._metrics.first_token(time.perf_counter() - begin)
                self._metrics.generated_tokens.inc()
                yield piece
        except ApiError:
            reason = "error"
            raise
        finally:
            self._engine.abort(sequence)  # no effect where it has ended by itself
            self._metrics.finished(reason or "abort")

    def _refusal(self) -> ApiError:
        if self._engine.is_healthy:
            return ApiError("the engine is full; try again", status=503, code="engine_overloaded")
        return ApiError(
            "the engine has stopped; its log says why", status=503, code="engine_stopped"
        )

    async def _pieces(
        self, outputs: "asyncio.Queue[Output]", request: GenerationRequest
    ) -> AsyncGenerator[TextPiece, None]:
        stream = TextStream(self._loaded.tokenizer, stop=request.stop)
        count = 0
        while True:
            token, reason, cached, reused = await outputs.get()
            if token is None:
                raise ApiError("the engine failed", status=500, code="internal_error")
            count += 1
            text = "" if reason == "stop" else stream.push(token)
            if reason is not None:
                text += stream.finish()
            if stream.is_stopped:
                reason = "stop"
            yield TextPiece(text, reason, count, cached, reused)
            if reason is not None:
                return
