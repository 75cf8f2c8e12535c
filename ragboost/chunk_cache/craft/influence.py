"""What is kept beside a chunk's KV: how much its tokens looked at the context it was computed in.

A few numbers per chunk and one per token, gathered while the KV was made; see `gather`. Knows names
and numbers. Does not know KV or models.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ragboost.chunk_cache.craft.formulas import (
    adjusted_overlap,
    context_impact,
    fix_overhead,
    order_penalty,
    prefix_overlap,
)

Order = Literal["mass", "peak", "change"]
"""What makes a token depend on other chunks: the attention that it gives them in all, as in the
paper; the highest weight that it gives to one of their tokens; or how far its KV is apart in the
chunk's versions (see `Variants.learn`; by the highest weight where there is one version alone)."""


def chunk_name(tokens: Sequence[int]) -> str:
    """Return the identity of a chunk among the chunks of a context (16 hex digits of its ids)."""
    return hashlib.sha256(repr([int(token) for token in tokens]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Influence:
    """The mark that a context left on a chunk (Cache-Craft eq. 3-5, 9, 10).

    Attention is averaged over heads and layers. The system prompt is no part of a context: it
    stands before every chunk.

    Attributes:
        context: names of the chunks that stood before it when its KV was computed, in order; empty
            where the KV saw none, even if the influence of some was measured.
        inter: attention of its tokens to each of them, summed.
        a: inter-attention per pair of tokens, summed over chunks (eq. 9).
        b: intra-attention, of its tokens to earlier ones of its own, over its length squared.
        order: its tokens by their inter-attention, highest first; ties by place.
        peak_order: its tokens by the highest single weight that any of their heads in any layer
            gave to a token of another chunk.
    """

    context: tuple[str, ...]
    inter: tuple[float, ...]
    a: float
    b: float
    order: tuple[int, ...]
    peak_order: tuple[int, ...] = ()

    def tokens(self, order: Order) -> tuple[int, ...]:
        """Return the tokens, those most in need of their context first."""
        return self.order if order == "mass" else self.peak_order or self.order

    def impact(self, *, literal: bool = False) -> float:
        """CCI, see `context_impact`."""
        return context_impact(self.a, self.b, literal=literal)

    def overlap(self, prefix: Sequence[str]) -> float:
        """beta' for a prompt with these chunks before this one, see `adjusted_overlap`."""
        by_name: dict[str, float] = {}
        for name, value in zip(self.context, self.inter, strict=True):
            by_name[name] = by_name.get(name, 0.0) + value
        return adjusted_overlap(
            prefix_overlap(by_name, prefix), order_penalty(self.context, prefix)
        )

    def overhead(
        self, prefix: Sequence[str], *, alpha: float = 1.0, literal: bool = False
    ) -> float:
        """CFO for a prompt with these chunks before this one, see `fix_overhead`."""
        return fix_overhead(self.impact(literal=literal), self.overlap(prefix), alpha=alpha)
