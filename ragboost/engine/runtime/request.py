"""A request on its way through the engine: tokens, KV, held cache blocks, outputs.

Owned by the engine thread after `Engine.submit`. Does not know text or HTTP.
"""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ragboost.chunk_cache.core.prefill import Counts
from ragboost.chunk_cache.core.snapkv import QuestionWindow
from ragboost.engine.runtime.kv import RequestKV
from ragboost.engine.runtime.prefix_cache import CacheBlock, block_key
from ragboost.engine.runtime.prompt import PromptTokens
from ragboost.engine.runtime.sampling import SamplingParams, sample


class ReusedTokens(NamedTuple):
    """Prompt tokens whose KV was stored in another context.

    Attributes:
        approximate: tokens whose stored KV was used unchanged.
        recomputed: tokens that were recomputed.
    """

    approximate: int = 0
    recomputed: int = 0


class Output(NamedTuple):
    """Result of one step for a request.

    Attributes:
        token_id: the new token; None if the request failed.
        finish_reason: `stop`, `length` or `error` on the last output, else None.
        cached_tokens: leading prompt tokens served from exact cached KV.
        reused: other reused prompt tokens; None if the request is exact.
    """

    token_id: int | None
    finish_reason: str | None
    cached_tokens: int
    reused: ReusedTokens | None = None


class EngineRequest:
    """A generation request inside the engine.

    Args:
        prompt: at least one token.
        params: sampling parameters.
        emit: called with each output, in the engine thread.
        stop_ids: tokens that end the generation.
        salt: namespace in the prefix cache and the chunk store (`cache_salt`).
        session_id: copied to the cache events.

    Attributes:
        token_ids: prompt, then generated tokens.
        num_prompt_tokens: length of the prompt.
        num_computed: leading tokens whose KV is in `kv`, always below `len(token_ids)`. While
            `rows` is set: the tokens before the first of those rows.
        cached_tokens: prompt tokens served from exact cached KV.
        held: prefix-cache blocks of the leading tokens, root first.
        kv: private KV; None before the first step and after the request has ended.
        is_selecting: whether the prompt rows to compute are still to be selected (chunk reuse, or
            a graph).
        rows: scattered prompt positions still to compute, (rows,), ascending; None: all positions
            from `num_computed` on.
        new_chunks: positions (start, stop) of chunks to store once the prompt is computed.
        window: records what the question attends to, until the prompt is shortened by that; None:
            it is not.
        exact_until: first position whose KV differs from that of a plain prefill. KV from here on
            never enters the prefix cache. None: all KV is exact.
        finish_reason: set when the request has ended.
    """

    def __init__(
        self,
        prompt: PromptTokens,
        params: SamplingParams,
        *,
        emit: Callable[[Output], None],
        stop_ids: frozenset[int] = frozenset(),
        salt: str | None = None,
        session_id: str | None = None,
    ) -> None:
        assert prompt.token_ids, "a request needs at least one token"
        self.prompt = prompt
        self.token_ids = list(prompt.token_ids)
        self.num_prompt_tokens = len(prompt.token_ids)
        self.params = params
        self.salt = salt
        self.session_id = session_id
        self.num_computed = 0
        self.cached_tokens = 0
        self.held: list[CacheBlock] = []
        self.kv: RequestKV | None = None
        self.is_selecting = prompt.reuse is not None or prompt.graph is not None
        self.rows: Tensor | None = None
        self.new_chunks: list[tuple[int, int]] = []
        self.window: QuestionWindow | None = None
        if prompt.cut is not None and prompt.keep_tokens is not None:
            self.window = QuestionWindow(len(prompt.cut.question))
        self.exact_until: int | None = None
        self.finish_reason: str | None = None
        self._emit = emit
        self._stop_ids = frozenset() if params.ignore_eos else stop_ids
        self._generator = params.generator()
        self._keys: list[bytes] = []
        self._reused = ReusedTokens() if self.is_selecting else None

    @property
    def is_prefilling(self) -> bool:
        """True if more than the newest token is still to be computed."""
        has_gap = len(self.token_ids) - self.num_computed > 1
        return has_gap or self.is_selecting or self.rows is not None

    @property
    def max_kv_tokens(self) -> int:
        """Tokens of KV that the request may need."""
        return self.num_prompt_tokens + self.params.max_tokens

    def block_keys(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Return the keys of the first `num_blocks` blocks; each is hashed once."""
        for i in range(len(self._keys), num_blocks):
            tokens = self.token_ids[i * block_size : (i + 1) * block_size]
            parent = self._keys[-1] if self._keys else None
            self._keys.append(block_key(parent, tokens, salt=self.salt))
        return self._keys[:num_blocks]

    def compute_rows(self, rows: Tensor, counts: Counts) -> None:
        """Compute only these prompt positions, (rows,); `kv` holds KV of all others."""
        self.is_selecting = False
        self.cached_tokens = counts.num_exact
        self._reused = ReusedTokens(counts.num_approximate, counts.num_recomputed)
        if counts.num_publishable < self.num_prompt_tokens:
            self.exact_until = counts.num_publishable
        first = int(rows[0])
        if len(rows) == self.num_prompt_tokens - first:
            self.num_computed = first
        else:
            self.rows = rows

    def mark_computed(self, positions: Tensor) -> None:
        """Record that `kv` now holds the KV of the next rows, (positions,)."""
        if self.rows is None:
            self.num_computed = int(positions[-1]) + 1
        elif len(positions) == len(self.rows):
            self.rows, self.num_computed = None, self.num_prompt_tokens
        else:
            self.rows = self.rows[len(positions) :]

    def append(self, logits: Tensor) -> None:
        """Sample the next token from `logits`, (vocab,), and emit it."""
        token = sample(logits, self.params, self._generator)
        self.token_ids.append(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) - self.num_prompt_tokens >= self.params.max_tokens:
            self.finish_reason = "length"
        self._emit(Output(token, self.finish_reason, self.cached_tokens, self._reused))

    def fail(self) -> None:
        """End the request with an error output."""
        self.finish_reason = "error"
        self._emit(Output(None, "error", self.cached_tokens))
