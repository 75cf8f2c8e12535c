"""Versions of chunks: the contexts in which their KV was computed, found by what fixing them would
cost, and dropped by how useful they were (Cache-Craft section 3.3).

Knows names, keys and numbers. Where the KV itself is kept is the store's business.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ragboost.chunk_cache.craft.formulas import fix_overhead
from ragboost.chunk_cache.craft.influence import Influence, Order
from ragboost.errors import ChunkCacheError

NUM_CHUNKS = 100
NUM_VARIANTS = 5
"""N and M of the paper: a budget of N x M variants, however they spread over chunks."""
BATCH = 10
"""A tenth of the budget goes at a time, so that new variants have time to be used."""
LEAST_OVERHEAD = 0.05
"""Divides an access's weight: a variant that costs nothing must not become immortal."""


@dataclass(slots=True)
class Variant:
    """KV of a chunk in one context.

    Attributes:
        chunk: name of the chunk, see `influence.chunk_name`.
        key: of its KV in the store.
        influence: of the context it was computed in.
        reuse_frequency: f_r, grows by 1 / CFO at each use.
    """

    chunk: str
    key: str
    influence: Influence
    reuse_frequency: float = 0.0


@dataclass(frozen=True, slots=True)
class Pick:
    """A variant and what it costs here.

    Attributes:
        variant: the one with the lowest CFO.
        impact: CCI.
        overlap: beta'.
        overhead: CFO.
        order: its tokens, those most in need of their context first.
    """

    variant: Variant
    impact: float
    overlap: float
    overhead: float
    order: tuple[int, ...]


class Variants:
    """The versions of all chunks. Safe to use from several threads.

    Args:
        capacity: variants kept at most.
        decay: factor on every f_r when some are dropped; 1 as in the paper, where what was once
            popular stays.
        on_drop: called with the store's key of every variant that is dropped.
    """

    def __init__(
        self,
        *,
        capacity: int = NUM_CHUNKS * NUM_VARIANTS,
        decay: float = 1.0,
        on_drop: Callable[[str], None] | None = None,
    ) -> None:
        if capacity < 1:
            raise ChunkCacheError(f"capacity must be at least 1 variant, got {capacity}")
        if not 0.0 < decay <= 1.0:
            raise ChunkCacheError(f"decay must be in (0, 1], got {decay}")
        self.capacity = capacity
        self._decay, self._on_drop = decay, on_drop
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

    def pick(
        self,
        chunk: str,
        prefix: Sequence[str],
        *,
        alpha: float = 1.0,
        literal: bool = False,
        cautious: bool = False,
        order: Order = "mass",
    ) -> Pick | None:
        """Return the variant that is cheapest to fix after these chunks, the newest of equal ones;
        None where there is none. Does not count as a use.

        Costs are compared before clipping: alpha scales all of them alike.

        Args:
            chunk: its name.
            prefix: names of the chunks before it.
            alpha, literal: see `fix_overhead` and `context_impact`.
            cautious: a variant that was computed with no chunk before it says nothing about what
                a context does to it. By the formulas it costs nothing wherever it goes; cautious,
                it takes impact and order of the variant that depended most on its context, and an
                impact of 1 where there is none.
            order: which of a variant's lists says what to fix first.
        """
        known, by_change = self.of(chunk), self.by_change(chunk)
        informed = [variant.influence for variant in known if variant.influence.context]
        most = max(informed, key=lambda influence: influence.impact(), default=None)
        best: Pick | None = None
        lowest = float("inf")
        for variant in known:
            source: Influence | None = variant.influence
            if cautious and prefix and not variant.influence.context:
                source = most
            impact = 1.0 if source is None else source.impact(literal=literal)
            overlap = variant.influence.overlap(prefix)
            cost = impact * (1.0 - overlap)
            if cost <= lowest:
                overhead = fix_overhead(impact, overlap, alpha=alpha)
                tokens = (source or variant.influence).tokens(order)
                if order == "change":
                    tokens = by_change or tokens
                best, lowest = Pick(variant, impact, overlap, overhead, tokens), cost
        return best

    def use(self, pick: Pick) -> None:
        """Count a use: f_r += 1 / CFO."""
        with self._lock:
            pick.variant.reuse_frequency += 1.0 / max(pick.overhead, LEAST_OVERHEAD)

    def add(self, variant: Variant) -> bool:
        """Keep a variant. False: the chunk has one of the same context already, which stays. A full
        budget first loses a tenth of its variants, those of the lowest f_r, the oldest of equal
        ones."""
        with self._lock:
            known = self._by_chunk.get(variant.chunk, ())
            if any(other.influence.context == variant.influence.context for other in known):
                return False
            dropped = self._make_room()
            self._by_key[variant.key] = variant
            self._by_chunk.setdefault(variant.chunk, []).append(variant)
        if self._on_drop is not None:
            for key in dropped:
                self._on_drop(key)
        return True

    def learn(self, chunk: str, change: Sequence[float]) -> None:
        """Add how far each token's KV is apart in two versions of a chunk; a chunk without versions
        is ignored."""
        with self._lock:
            if chunk in self._by_chunk:
                known = self._change.get(chunk, [0.0] * len(change))
                self._change[chunk] = [a + b for a, b in zip(known, change, strict=True)]

    def by_change(self, chunk: str) -> tuple[int, ...]:
        """Return the chunk's tokens by what was learnt, the highest first, ties by place; empty
        where nothing was."""
        with self._lock:
            change = self._change.get(chunk, [])
        return tuple(sorted(range(len(change)), key=lambda token: -change[token]))

    def forget(self, key: str) -> None:
        """Forget a variant whose KV is gone; an unknown key does nothing."""
        with self._lock:
            self._remove(key)

    def _make_room(self) -> list[str]:
        if len(self._by_key) < self.capacity:
            return []
        variants = sorted(self._by_key.values(), key=lambda variant: variant.reuse_frequency)
        dropped = [variant.key for variant in variants[: max(1, self.capacity // BATCH)]]
        for key in dropped:
            self._remove(key)
        for variant in self._by_key.values():
            variant.reuse_frequency *= self._decay
        return dropped

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
        """Raise where the books do not add up.

        Raises:
            ChunkCacheError: with the numbers.
        """
        with self._lock:
            by_chunk = sum(len(variants) for variants in self._by_chunk.values())
            if by_chunk != len(self._by_key) or by_chunk > self.capacity:
                raise ChunkCacheError(
                    f"{by_chunk} variants by chunk, {len(self._by_key)} by key, "
                    f"{self.capacity} allowed"
                )
