"""The influence that a context had on a chunk, and the cost of reusing it in another context
(Cache-Craft eq. 3-14). Knows numbers and names of chunks. Does not know KV or models."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import ConfigDict, Field

from ragboost.errors import ChunkCacheError

STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
Count = Annotated[int, Field(ge=0, le=(1 << 63) - 1)]


def chunk_name(tokens: Sequence[int]) -> str:
    """Return the identity of a chunk within a context (16 hex digits of its token ids)."""
    return hashlib.sha256(repr([int(token) for token in tokens]).encode()).hexdigest()[:16]


def prefix_overlap(inter: Mapping[str, float], prefix: Sequence[str]) -> float:
    """Return beta (eq. 6): the share of a chunk's attention to others, by name, that goes to chunks
    before it again. If it looked at nothing: 1 if all of its context is there again, else 0."""
    if not inter:
        return 0.0
    now = set(prefix)
    total = sum(inter.values())
    if total <= 0.0:
        return 1.0 if inter.keys() <= now else 0.0
    return sum(value for name, value in inter.items() if name in now) / total


def order_penalty(old: Sequence[str], new: Sequence[str]) -> float:
    """Return gamma (eq. 7): the share of pairs of common chunks whose order changed (normalised
    Kendall distance); 0 for fewer than two. A repeated chunk counts at its first place."""
    first = {name: place for place, name in reversed(list(enumerate(new)))}
    places = [first[name] for name in dict.fromkeys(old) if name in first]
    num_pairs = len(places) * (len(places) - 1) // 2
    if num_pairs == 0:
        return 0.0
    discordant = sum(
        places[i] > places[j] for i in range(len(places)) for j in range(i + 1, len(places))
    )
    return discordant / num_pairs


def adjusted_overlap(beta: float, gamma: float) -> float:
    """Return beta' (eq. 8)."""
    return beta * (1.0 - gamma)


def context_impact(a: float, b: float, *, literal: bool = False) -> float:
    """Return the Cache Context Impact (CCI) of normalised inter- (a) and intra-attention (b): a /
    (a + b), the sigmoid of ln(a / b). `literal`: that of a / b as eq. 11 prints it, at least .5."""
    if a < 0.0 or b < 0.0:
        raise ChunkCacheError(f"attention cannot be negative, got a={a}, b={b}")
    if not literal:
        return a / (a + b) if a > 0.0 else 0.0
    if b == 0.0:
        return 1.0 if a > 0.0 else 0.5
    return 1.0 / (1.0 + math.exp(-a / b))


@dataclass(frozen=True, slots=True)
class Influence:
    """Attention of a chunk to its context without the system prompt, averaged over heads and layers
    (Cache-Craft eq. 3-5, 9, 10)."""

    __pydantic_config__ = STRICT  # for the chunk files
    # names of the preceding chunks when its KV was computed, in order; empty if the KV was computed
    # without them, even if their influence was measured
    context: tuple[str, ...]
    inter: tuple[float, ...]  # summed attention of its tokens to each of them
    # inter-attention per pair of tokens, summed over chunks (eq. 9)
    a: Annotated[float, Field(ge=0)]
    # intra-attention to earlier tokens of the chunk, divided by its squared length (eq. 10)
    b: Annotated[float, Field(ge=0)]
    order: tuple[Count, ...]  # its tokens by descending inter-attention; ties by position

    def only_first(self, count: int) -> "Influence":
        return replace(self, order=tuple(token for token in self.order if token < count))

    def impact(self, *, literal: bool = False) -> float:
        return context_impact(self.a, self.b, literal=literal)

    def overlap(self, prefix: Sequence[str]) -> float:
        """Return beta' (eq. 8) in a prompt with these chunks before this one."""
        by_name: dict[str, float] = {}
        for name, value in zip(self.context, self.inter, strict=True):
            by_name[name] = by_name.get(name, 0.0) + value
        return adjusted_overlap(
            prefix_overlap(by_name, prefix), order_penalty(self.context, prefix)
        )
