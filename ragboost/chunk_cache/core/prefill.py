"""The result of a prefill with reused chunks."""

from dataclasses import dataclass

import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.model.assemble import Assembly, TokenSource


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds spent in each part of a prefill."""

    assemble_s: float
    select_s: float
    compute_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """The tokens of a prompt by origin of their KV.

    Attributes:
        num_exact: tokens with stored KV equal to that of an ordinary forward pass.
        num_approximate: tokens with stored KV of another context, reused as it is.
        num_recomputed: tokens with such KV that were recomputed.
        num_computed: tokens without stored KV, including the question.
        num_publishable: leading tokens whose KV may enter an exact prefix cache. KV after the first
            approximate token must not.
    """

    num_exact: int
    num_approximate: int
    num_recomputed: int
    num_computed: int
    num_publishable: int

    @classmethod
    def of(cls, assembly: Assembly, selected: torch.Tensor) -> "Counts":
        """Count the tokens of a prompt of which `selected`, (selected,), are recomputed."""
        total, candidates = len(assembly.tokens), assembly.candidates
        num_exact = int((assembly.source == TokenSource.EXACT).sum())
        is_exact = len(selected) == len(candidates)
        return cls(
            num_exact=num_exact,
            num_approximate=len(candidates) - len(selected),
            num_recomputed=len(selected),
            num_computed=total - num_exact - len(candidates),
            num_publishable=total if is_exact else int(candidates[0]),
        )

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.num_exact + self.num_approximate + self.num_recomputed + self.num_computed


@dataclass(frozen=True, slots=True)
class Prefill(Counts):
    """A prompt that is ready for decoding.

    Attributes:
        cache: KV of the prompt, owned by the request; decode from position `num_tokens` on.
        logits: logits of the last token, (vocabulary,).
        selected: positions of the recomputed tokens, ascending.
        timing: time spent in each part.
    """

    cache: DynamicCache
    logits: torch.Tensor
    selected: tuple[int, ...]
    timing: Timing
