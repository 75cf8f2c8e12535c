"""The plan of a request (Cache-Craft section 3.4.1): which chunks are there, in which version, and
how much of each must be computed again.

A value: it can be compared, stored and printed. Knows names and numbers; see `reuse` for who makes
and follows it.
"""

from dataclasses import dataclass

from ragboost.chunk_cache.craft.variants import Pick


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk of the prompt.

    Attributes:
        name: see `influence.chunk_name`.
        start, stop: positions.
        pick: the version to use; None: a miss, computed whole.
        is_exact: the version is what an ordinary forward gives here.
        fixed: positions of the tokens to compute again, ascending; none of a miss.
    """

    name: str
    start: int
    stop: int
    pick: Pick | None
    is_exact: bool
    fixed: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return self.stop - self.start

    @property
    def num_computed(self) -> int:
        """Tokens to compute, again or for the first time."""
        return self.num_tokens if self.pick is None else len(self.fixed)

    @property
    def is_whole(self) -> bool:
        """Whether every token is computed, so that a new version of the chunk comes of it."""
        return self.num_computed == self.num_tokens


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """What a request takes from the store and what it computes. `str()` gives a table.

    Attributes:
        chunks: in the order of the prompt.
        num_system, num_question: tokens around them.
    """

    chunks: tuple[PlannedChunk, ...]
    num_system: int
    num_question: int

    @property
    def hits(self) -> tuple[PlannedChunk, ...]:
        """Chunks with stored KV."""
        return tuple(chunk for chunk in self.chunks if chunk.pick is not None)

    @property
    def misses(self) -> tuple[PlannedChunk, ...]:
        """Chunks without."""
        return tuple(chunk for chunk in self.chunks if chunk.pick is None)

    @property
    def num_recomputed(self) -> int:
        """Tokens of hits that are computed again."""
        return sum(len(chunk.fixed) for chunk in self.hits)

    @property
    def num_computed(self) -> int:
        """Tokens of misses, and of the question."""
        return sum(chunk.num_tokens for chunk in self.misses) + self.num_question

    @property
    def recompute_ratio(self) -> float:
        """Share of the hits' tokens that are computed again; 0 without hits."""
        stored = sum(chunk.num_tokens for chunk in self.hits)
        return self.num_recomputed / stored if stored else 0.0

    def __str__(self) -> str:
        head = f"{'chunk':16}  {'tokens':>6}  {'':5}  {'CCI':>5}  beta'    CFO  {'compute':>7}"
        lines = [head]
        for chunk in self.chunks:
            kind, numbers = "miss", f"{'-':>5}  {'-':>5}  {'-':>5}"
            if chunk.pick is not None:
                kind = "exact" if chunk.is_exact else "hit"
                impact = chunk.pick.impact
                numbers = f"{impact:5.3f}  {chunk.pick.overlap:5.3f}  {chunk.pick.overhead:5.3f}"
            row = f"{chunk.name:16}  {chunk.num_tokens:6}  {kind:5}  {numbers}"
            lines.append(f"{row}  {chunk.num_computed:7}")
        lines.append(
            f"{len(self.hits)} hits, {len(self.misses)} misses; {self.num_recomputed} tokens "
            f"computed again, {self.num_computed} for the first time"
        )
        return "\n".join(lines)
