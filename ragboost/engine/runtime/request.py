"""One request on its way through the engine: its tokens, its KV, what it holds, what it returns.

Owned by the engine thread from `Engine.submit` on. Does not know text or HTTP.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from ragboost.chunk_cache.prefill import Counts
from ragboost.engine.http.extension import Approx
from ragboost.engine.parts import Parts
from ragboost.engine.runtime.graph import GraphPrompt
from ragboost.engine.runtime.kv import SequenceKV
from ragboost.engine.runtime.prefix_cache import CacheBlock, block_key
from ragboost.engine.runtime.sampling import SamplingParams, sample


class Output(NamedTuple):
    """What one step gave a request.

    Attributes:
        token_id: the new token; None where the request failed.
        finish_reason: `stop`, `length` or `error` with the last output, else None.
        cached_tokens: leading prompt tokens whose KV was cached and is exact.
        reused: what else was reused of the prompt; None where the request is exact.
    """

    token_id: int | None
    finish_reason: str | None
    cached_tokens: int
    reused: "Reused | None" = None


class Reused(NamedTuple):
    """Prompt tokens that had KV of another context.

    Attributes:
        approximate: used as it was.
        recomputed: computed again.
    """

    approximate: int = 0
    recomputed: int = 0


class EngineRequest:
    """A request in the engine.

    Attributes:
        token_ids: prompt, then generated tokens.
        num_prompt_tokens: length of the prompt.
        num_computed: leading tokens whose KV is in `kv`; always below `len(token_ids)`. With
            `rows` set it is where they began.
        cached_tokens: prompt tokens whose KV was cached and is exact.
        held: blocks of the prefix cache that hold its leading tokens, root first.
        kv: its KV cache; None before it is first scheduled and after it has ended.
        parts, approx: where chunks stand in the prompt and how they are reused; None: it is
            computed exactly.
        graph: the prompt as a tree, where it is computed with dependency attention; else None.
        is_choosing: what of the prompt is to be computed has not been chosen yet.
        rows: positions of the prompt that are still to be computed, (rows,), ascending, where they
            are scattered; None: all from `num_computed` on.
        exact_until: KV from this position on is not what a plain prefill gives, and is never
            written to the prefix cache; None: all of it is.
        finish_reason: why it ended; None while it runs.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        emit: Callable[[Output], None],
        stop_ids: frozenset[int] = frozenset(),
        salt: str | None = None,
        session_id: str | None = None,
        parts: Parts | None = None,
        approx: Approx | None = None,
        graph: GraphPrompt | None = None,
    ) -> None:
        assert prompt, "a sequence needs at least one token"
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.params = params
        self.salt = salt
        self.session_id = session_id
        self.num_computed = 0
        self.cached_tokens = 0
        self.held: list[CacheBlock] = []
        self.kv: SequenceKV | None = None
        self.parts = parts
        self.approx = approx
        self.graph = graph
        self.is_choosing = parts is not None and approx is not None
        self.rows: Tensor | None = None
        self.exact_until: int | None = None
        self.finish_reason: str | None = None
        self._emit = emit
        self._stop_ids = frozenset() if params.ignore_eos else stop_ids
        self._generator = params.generator()
        self._keys: list[bytes] = []
        self._reused = Reused() if self.is_choosing else None

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token has to be computed, or parts of the prompt do."""
        is_whole = len(self.token_ids) - self.num_computed <= 1
        return self.is_choosing or self.rows is not None or not is_whole

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, for whatever reason."""
        return self.finish_reason is not None

    def block_keys(self, num_blocks: int, block_size: int) -> list[bytes]:
        """Keys of the first `num_blocks` blocks; each is hashed once."""
        for i in range(len(self._keys), num_blocks):
            tokens = self.token_ids[i * block_size : (i + 1) * block_size]
            parent = self._keys[-1] if self._keys else None
            self._keys.append(block_key(parent, tokens, salt=self.salt))
        return self._keys[:num_blocks]

    def compute_all(self) -> None:
        """Compute the whole prompt: nothing of it is reused."""
        self.is_choosing = False

    def compute_rows(self, rows: Tensor, counts: Counts) -> None:
        """Compute these positions, (rows,), over the KV that `kv` now holds of the others."""
        self.is_choosing = False
        self.cached_tokens = counts.num_exact
        self._reused = Reused(counts.num_approximate, counts.num_recomputed)
        if counts.num_publishable < self.num_prompt_tokens:
            self.exact_until = counts.num_publishable
        first = int(rows[0])
        if len(rows) == self.num_prompt_tokens - first:
            self.num_computed = first
        else:
            self.rows = rows

    def computed(self, positions: Tensor) -> None:
        """Note that the KV of the next rows, (positions,), is in `kv` now."""
        last = int(positions[-1])
        if self.rows is None:
            self.num_computed = last + 1
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
        """End it with an error, and say so to the caller."""
        self.finish_reason = "error"
        self._emit(Output(None, "error", self.cached_tokens))
