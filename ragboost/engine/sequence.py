"""One request on its way through the engine: its tokens, its KV, what it holds, what it returns.

Owned by the engine thread from `Engine.submit` on. Does not know text or HTTP.
"""

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import NamedTuple

from torch import Tensor

from ragboost.engine.kv import SequenceKV
from ragboost.engine.prefix_cache import Block, block_key
from ragboost.engine.sampling import SamplingParams, sample


class Output(NamedTuple):
    """What one step gave a request.

    Attributes:
        token_id: the new token; None where the request failed.
        finish_reason: `stop`, `length` or `error` with the last output, else None.
        cached_tokens: prompt tokens whose KV came from the prefix cache.
    """

    token_id: int | None
    finish_reason: str | None
    cached_tokens: int


class Sequence:
    """A request in the engine.

    Attributes:
        token_ids: prompt, then generated tokens.
        num_prompt_tokens: length of the prompt.
        num_computed: leading tokens whose KV is in `kv`; always below `len(token_ids)`.
        cached_tokens: of these, how many were copied from the prefix cache.
        held: blocks of the prefix cache that hold its leading tokens, root first.
        kv: its KV cache; None before it is first scheduled and after it has ended.
        is_exact: whether `kv` is what a plain prefill gives. KV of a sequence that is not exact
            must never reach the prefix cache, and is not written to it.
        finish_reason: why it ended; None while it runs.
    """

    def __init__(
        self,
        prompt: SequenceOf[int],
        params: SamplingParams,
        *,
        emit: Callable[[Output], None],
        stop_ids: frozenset[int] = frozenset(),
        salt: str | None = None,
        session_id: str | None = None,
    ) -> None:
        assert prompt, "a sequence needs at least one token"
        self.token_ids = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.params = params
        self.salt = salt
        self.session_id = session_id
        self.num_computed = 0
        self.cached_tokens = 0
        self.held: list[Block] = []
        self.kv: SequenceKV | None = None
        self.is_exact = True
        self.finish_reason: str | None = None
        self._emit = emit
        self._stop_ids = frozenset() if params.ignore_eos else stop_ids
        self._generator = params.generator()
        self._keys: list[bytes] = []

    @property
    def is_prefilling(self) -> bool:
        """Whether more than the newest token has to be computed."""
        return len(self.token_ids) - self.num_computed > 1

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

    def append(self, logits: Tensor) -> None:
        """Sample the next token from `logits`, (vocab,), and emit it."""
        token = sample(logits, self.params, self._generator)
        self.token_ids.append(token)
        if token in self._stop_ids:
            self.finish_reason = "stop"
        elif len(self.token_ids) - self.num_prompt_tokens >= self.params.max_tokens:
            self.finish_reason = "length"
        self._emit(Output(token, self.finish_reason, self.cached_tokens))

    def fail(self) -> None:
        """End it with an error, and say so to the caller."""
        self.finish_reason = "error"
        self._emit(Output(None, "error", self.cached_tokens))
