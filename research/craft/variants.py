"""Variants of chunks, one per context that their KV was computed in: chosen by the cost of fixing
them, and evicted by their reuse frequency (Cache-Craft section 3.3).

Knows names, keys and numbers. Does not hold KV.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from ragboost.chunk_cache.store.influence import Influence
from ragboost.errors import ChunkCacheError
from research.craft.overhead import fix_overhead

NUM_CHUNKS = 100
NUM_VARIANTS = 5
"""N and M of the paper: a budget of N x M variants of any chunks."""
Order = Literal["mass", "change"]
"""The measure of a token's dependence on other chunks: its total attention to them, as in the
paper; or the difference of its KV between the variants of the chunk (see `Variants.learn`)."""
EVICTED_SHARE = 10
"""A tenth of the budget is evicted at a time, so that new variants have time to be used."""
LEAST_OVERHEAD = 0.05
"""Lower bound of the CFO in f_r: a variant with CFO 0 must not have infinite reuse frequency."""


@dataclass(slots=True)
class Variant:
    """KV of a chunk in one context."""

    chunk: str  # name of the chunk, see `influence.chunk_name`
    key: str  # key of its KV in the store
    influence: Influence  # influence of the context it was computed in
    reuse_frequency: float = 0.0  # f_r, incremented by 1 / CFO at each use


@dataclass(frozen=True, slots=True)
class VariantChoice:
    """The variant with the lowest CFO in a context."""

    variant: Variant  # the variant
    impact: float  # CCI
    overlap: float  # beta'
    overhead: float  # CFO
    order: tuple[int, ...]  # its tokens, the most dependent on their context first


class Variants:
    """The variants of all chunks. Safe to use from several threads.

    Args:
        on_evict: called with the store key of every evicted variant.
    """

    def __init__(
        self,
        *,
        capacity: int = NUM_CHUNKS * NUM_VARIANTS,
        on_evict: Callable[[str], None] | None = None,
    ) -> None:
        if capacity < 1:
            raise ChunkCacheError(f"capacity must be at least 1 variant, got {capacity}")
        self.capacity = capacity
        self._on_evict = on_evict
        self._by_key: dict[str, Variant] = {}  # oldest first
        self._by_chunk: dict[str, list[Variant]] = {}
        self._change: dict[str, list[float]] = {}  # by chunk, of each token
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, chunk: str) -> tuple[Variant, ...]:
        """Return the variants of a chunk, oldest first."""
        with self._lock:
            return tuple(self._by_chunk.get(chunk, ()))

    def choose(
        self,
        chunk: str,
        prefix: Sequence[str],
        *,
        alpha: float = 1.0,
        literal: bool = False,
        cautious: bool = False,
        order: Order = "mass",
    ) -> VariantChoice | None:
        """Return the variant that is cheapest to fix after these chunks, the newest of equal ones;
        None if the chunk has none. Does not count as a use.

        Costs are compared before clipping: alpha scales all of them equally.

        Args:
            alpha, literal: see `fix_overhead` and `context_impact`.
            cautious: use impact and order of the variant most dependent on its context for one that
                was computed with no chunk before it, and an impact of 1 if there is none. By the
                formulas such a variant costs nothing in any context.
        """
        variants, by_change = self.of(chunk), self.by_change(chunk)
        informed = [variant.influence for variant in variants if variant.influence.context]
        most = max(informed, key=lambda influence: influence.impact(), default=None)
        best: VariantChoice | None = None
        lowest = float("inf")
        for variant in variants:
            source: Influence | None = variant.influence
            if cautious and prefix and not variant.influence.context:
                source = most
            impact = 1.0 if source is None else source.impact(literal=literal)
            overlap = variant.influence.overlap(prefix)
            cost = impact * (1.0 - overlap)
            if cost <= lowest:
                overhead = fix_overhead(impact, overlap, alpha=alpha)
                tokens = (source or variant.influence).order
                if order == "change":
                    tokens = by_change or tokens
                best = VariantChoice(variant, impact, overlap, overhead, tokens)
                lowest = cost
        return best

    def use(self, choice: VariantChoice) -> None:
        """Count a use: f_r += 1 / CFO."""
        with self._lock:
            choice.variant.reuse_frequency += 1.0 / max(choice.overhead, LEAST_OVERHEAD)

    def add(self, variant: Variant) -> bool:
        """Add a variant. If the budget is full, first evict a tenth of the variants, those with the
        lowest f_r, the oldest of equal ones.

        Returns:
            False if the chunk already has a variant of the same context; it is kept.
        """
        with self._lock:
            siblings = self._by_chunk.get(variant.chunk, ())
            if any(other.influence.context == variant.influence.context for other in siblings):
                return False
            evicted = self._make_room()
            self._by_key[variant.key] = variant
            self._by_chunk.setdefault(variant.chunk, []).append(variant)
        if self._on_evict is not None:
            for key in evicted:
                self._on_evict(key)
        return True

    def learn(self, chunk: str, change: Sequence[float]) -> None:
        """Add the difference of each token's KV between two variants of a chunk. Chunks without
        variants are ignored."""
        with self._lock:
            if chunk in self._by_chunk:
                total = self._change.get(chunk, [0.0] * len(change))
                self._change[chunk] = [a + b for a, b in zip(total, change, strict=True)]

    def by_change(self, chunk: str) -> tuple[int, ...]:
        """Return the chunk's tokens by descending learned difference, ties by position; empty if
        none was learned."""
        with self._lock:
            change = self._change.get(chunk, [])
        return tuple(sorted(range(len(change)), key=lambda token: -change[token]))

    def forget(self, key: str) -> None:
        """Remove a variant whose KV was evicted. An unknown key does nothing."""
        with self._lock:
            self._remove(key)

    def _make_room(self) -> list[str]:
        if len(self._by_key) < self.capacity:
            return []
        variants = sorted(self._by_key.values(), key=lambda variant: variant.reuse_frequency)
        evicted = [variant.key for variant in variants[: max(1, self.capacity // EVICTED_SHARE)]]
        for key in evicted:
            self._remove(key)
        return evicted

    def _remove(self, key: str) -> None:
        variant = self._by_key.pop(key, None)
        if variant is None:
            return
        siblings = self._by_chunk[variant.chunk]
        siblings.remove(variant)
        if not siblings:
            del self._by_chunk[variant.chunk]
            self._change.pop(variant.chunk, None)

    def check_integrity(self) -> None:
        """Check the number of variants.

        Raises:
            ChunkCacheError: it is wrong; the message has the numbers.
        """
        with self._lock:
            by_chunk = sum(len(variants) for variants in self._by_chunk.values())
            if by_chunk != len(self._by_key) or by_chunk > self.capacity:
                raise ChunkCacheError(
                    f"{by_chunk} variants by chunk, {len(self._by_key)} by key, at most "
                    f"{self.capacity}"
                )
