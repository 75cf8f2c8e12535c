"""A request on its way through the engine, and how its next token is sampled: greedy, or nucleus
sampling with a seed per request."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ragboost.chunk_cache.core.request import EngineChunkRequest, TokenOrigins
from ragboost.chunk_cache.core.reusing_request import ReusingRequest
from ragboost.engine.runtime.kv import RequestKV
from ragboost.engine.runtime.prefix_cache import CacheBlock, block_key
from ragboost.graph.layout import Layout

_GREEDY = 1e-5  # below this temperature, as in vLLM: divided by less, logits overflow


@dataclass(frozen=True, slots=True)
class SamplingParams:
    max_tokens: int = 16
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # probability mass of the tokens to sample from
    seed: int | None = None  # None: random
    ignore_eos: bool = False  # continue after an end-of-sequence token (for benchmarks)

    def generator(self) -> torch.Generator | None:
        if self.temperature < _GREEDY:
            return None
        generator = torch.Generator()
        if self.seed is None:
            generator.seed()
        else:
            generator.manual_seed(self.seed & 0x7FFF_FFFF_FFFF_FFFF)
        return generator


def sample(logits: Tensor, params: SamplingParams, generator: torch.Generator | None) -> int:
    if generator is None:
        return int(logits.argmax())
    probs = (logits.cpu() / params.temperature).softmax(-1)
    if params.top_p < 1:
        ordered, ids = probs.sort(descending=True)
        # Keep every token before which less than top_p has been gathered: at least the first.
        is_beyond = ordered.cumsum(-1) - ordered >= params.top_p
        ordered[1:][is_beyond[1:]] = 0.0
        return int(ids[torch.multinomial(ordered, 1, generator=generator)])
    return int(torch.multinomial(probs, 1, generator=generator))


class PromptTokens(NamedTuple):
    token_ids: list[int]  # the whole prompt
    chunks: EngineChunkRequest | None = None  # how chunks are reused; None: computed exactly
    graph: Layout | None = None  # the same prompt as a tree; None: ordinary attention


Scores = Sequence[tuple[float, float]]
"""Of each scored token, its log-probability and that of the most likely one in its place."""


class Output(NamedTuple):
    """Result of one step for a request."""

    token_id: int | None  # the new token; None if the request failed
    finish_reason: str | None  # `stop`, `length` or `error` on the last output
    cached_tokens: int  # prompt tokens served from exact cached KV
    origins: TokenOrigins | None = None  # of the prompt, if it reuses chunks or has a graph
    scores: Scores = ()


class EngineRequest:
    """A generation request; `salt` is its namespace in the prefix cache and the chunk store. The
    last `num_scored` tokens of the prompt, not all, are scored."""

    def __init__(
        self,
        prompt: PromptTokens,
        params: SamplingParams,
        *,
        emit: Callable[[Output], None],
        stop_ids: frozenset[int] = frozenset(),
        salt: str | None = None,
        session_id: str | None = None,
        num_scored: int = 0,
    ) -> None:
        assert prompt.token_ids, "a request needs at least one token"
        self.prompt = prompt
        self.token_ids = list(prompt.token_ids)
        self.num_prompt_tokens = len(prompt.token_ids)
        self.num_scored = num_scored
        self.scores: list[tuple[float, float]] = []
        self.params = params
        self.salt = salt
        self.session_id = session_id
        self.num_computed = 0  # leading tokens with KV in `kv`, always below `len(token_ids)`
        self.cached_tokens = 0
        self.held: list[CacheBlock] = []
        self.kv: RequestKV | None = None  # from the first step to the end of the request
        # Its chunks, once it waits; None: the prompt is computed exactly, and nothing stored.
        self.asked: ReusingRequest | None = None
        is_reusing = prompt.chunks is not None and prompt.chunks.reason is None
        # A part of the prompt is still to be filled.
        self.is_filling = is_reusing or prompt.graph is not None
        # First position whose KV differs from a plain prefill's; KV from here on never enters the
        # prefix cache. None: all KV is exact.
        self.exact_until: int | None = None
        self.finish_reason: str | None = None
        self._emit = emit
        self._stop_ids = frozenset() if params.ignore_eos else stop_ids
        self._generator = params.generator()
        self._keys: list[bytes] = []
        self._filled: TokenOrigins | None = None

    @property
    def is_prefilling(self) -> bool:
        has_gap = len(self.token_ids) - self.num_computed > 1
        return has_gap or self.is_filling

    @property
    def origins(self) -> TokenOrigins | None:
        if self.prompt.chunks is None and self.prompt.graph is None:
            return None
        computed = self.num_prompt_tokens - self.cached_tokens
        return self._filled or TokenOrigins(exact=self.cached_tokens, computed=computed)

    @property
    def first_logits(self) -> int:
        """First position whose logits are wanted."""
        has_answer = len(self.token_ids) > self.num_prompt_tokens
        return len(self.token_ids) - 1 - (0 if has_answer else self.num_scored)

    @property
    def max_kv_tokens(self) -> int:
        return self.num_prompt_tokens + self.params.max_tokens

    def block_keys(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Return the keys of the first `num_blocks` blocks; each is hashed once."""
        for i in range(len(self._keys), num_blocks):
            tokens = self.token_ids[i * block_size : (i + 1) * block_size]
            parent = self._keys[-1] if self._keys else None
            self._keys.append(block_key(parent, tokens, salt=self.salt))
        return self._keys[:num_blocks]

    def continue_at(self, start: int, origins: TokenOrigins, *, exact_until: int | None) -> None:
        """Compute the prompt from a position on; `kv` was filled with the KV before it."""
        self.is_filling, self.num_computed, self._filled = False, start, origins
        self.cached_tokens, self.exact_until = origins.exact, exact_until

    def score(self, logits: Tensor, *, end: int) -> None:
        """Score the prompt's tokens behind the rows before `end`, whose logits are given."""
        if not self.num_scored:
            return
        for position, row in enumerate(logits, end - len(logits)):
            if position + 1 < self.num_prompt_tokens:
                row = row.log_softmax(-1)
                self.scores.append((float(row[self.token_ids[position + 1]]), float(row.max())))

    def append(self, logits: Tensor) -> None:
        token = sample(logits, self.params, self._generator)
        self.token_ids.append(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) - self.num_prompt_tokens >= self.params.max_tokens:
            self.finish_reason = "length"
        reason, cached = self.finish_reason, self.cached_tokens
        self._emit(Output(token, reason, cached, self.origins, self.scores))

    def fail(self) -> None:
        self.finish_reason = "error"
        self._emit(Output(None, "error", self.cached_tokens))
