"""What a prefill with reused chunks gives: the KV, the first logits, and where every token came
from."""

from dataclasses import dataclass

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.assemble import Assembly, TokenSource


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds spent in each part of a prefill."""

    assemble_s: float
    select_s: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the tokens of a prompt come from; the four add up to it.

    Attributes:
        num_exact: tokens whose KV was stored and is what an ordinary forward gives.
        num_approximate: tokens whose KV was stored in another context and is used as it is.
        num_recomputed: tokens that had such KV and were computed again.
        num_computed: tokens without stored KV, and the question.
        num_publishable: leading tokens whose KV may enter an exact prefix cache. What stands after
            the first approximate token must never.
    """

    num_exact: int
    num_approximate: int
    num_recomputed: int
    num_computed: int
    num_publishable: int

    @classmethod
    def of(cls, assembly: Assembly, selected: torch.Tensor) -> "Counts":
        """Count an assembled prompt of which these tokens, (selected,), are computed again."""
        total, candidates = len(assembly.tokens), assembly.candidates
        num_exact = int((assembly.source == TokenSource.EXACT).sum())
        is_whole = len(selected) == len(candidates)
        return cls(
            num_exact=num_exact,
            num_approximate=len(candidates) - len(selected),
            num_recomputed=len(selected),
            num_computed=total - num_exact - len(candidates),
            num_publishable=total if is_whole else int(candidates[0]),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.num_exact + self.num_approximate + self.num_recomputed + self.num_computed


@dataclass(frozen=True, slots=True)
class Prefill(Counts):
    """A prompt that is ready to be decoded.

    Attributes:
        cache: its KV, a `DynamicCache` of the request's own; decode from position `num_tokens` on.
        logits: of the last token, (vocabulary,).
        selected: positions of the recomputed tokens, ascending.
        timing: where the time went.
    """

    cache: DynamicCache
    logits: torch.Tensor
    selected: tuple[int, ...]
    timing: Timing
