"""The inference plan of a request (Cache-Craft section 3.4.1): the stored variant of each chunk,
and the tokens to recompute. A value that can be compared, stored and printed.
"""

from dataclasses import dataclass

from research.craft.variants import VariantChoice


@dataclass(frozen=True, slots=True)
class PlannedChunk:
    """A chunk of the prompt."""

    name: str  # see `influence.chunk_name`
    start: int  # positions
    stop: int
    choice: VariantChoice | None  # the variant to use; None: a miss, computed entirely
    is_exact: bool  # the variant equals the KV of an ordinary forward pass here
    fixed: tuple[int, ...]  # positions of the tokens to recompute, ascending; empty for a miss

    @property
    def num_tokens(self) -> int:
        """Tokens of the chunk."""
        return self.stop - self.start

    @property
    def num_computed(self) -> int:
        """Tokens to compute or recompute."""
        return self.num_tokens if self.choice is None else len(self.fixed)

    @property
    def is_whole(self) -> bool:
        """True if every token is computed, which makes a new variant of the chunk."""
        return self.num_computed == self.num_tokens


@dataclass(frozen=True, slots=True)
class InferencePlan:
    """The KV that a request takes from the store and computes. `str()` returns a table."""

    chunks: tuple[PlannedChunk, ...]  # chunks in the order of the prompt
    num_system: int  # tokens before and after them
    num_question: int

    @property
    def hits(self) -> tuple[PlannedChunk, ...]:
        """Chunks with stored KV."""
        return tuple(chunk for chunk in self.chunks if chunk.choice is not None)

    @property
    def misses(self) -> tuple[PlannedChunk, ...]:
        """Chunks without stored KV."""
        return tuple(chunk for chunk in self.chunks if chunk.choice is None)

    @property
    def num_recomputed(self) -> int:
        """Tokens of hits to recompute."""
        return sum(len(chunk.fixed) for chunk in self.hits)

    @property
    def num_computed(self) -> int:
        """Tokens of misses and of the question."""
        return sum(chunk.num_tokens for chunk in self.misses) + self.num_question

    @property
    def recompute_ratio(self) -> float:
        """Share of the hits' tokens to recompute; 0 without hits."""
        stored = sum(chunk.num_tokens for chunk in self.hits)
        return self.num_recomputed / stored if stored else 0.0

    def __str__(self) -> str:
        head = f"{'chunk':16}  {'tokens':>6}  {'':5}  {'CCI':>5}  beta'    CFO  {'compute':>7}"
        lines = [head]
        for chunk in self.chunks:
            kind, numbers = "miss", f"{'-':>5}  {'-':>5}  {'-':>5}"
            if chunk.choice is not None:
                kind = "exact" if chunk.is_exact else "hit"
                impact = chunk.choice.impact
                numbers = (
                    f"{impact:5.3f}  {chunk.choice.overlap:5.3f}  {chunk.choice.overhead:5.3f}"
                )
            row = f"{chunk.name:16}  {chunk.num_tokens:6}  {kind:5}  {numbers}"
            lines.append(f"{row}  {chunk.num_computed:7}")
        lines.append(
            f"{len(self.hits)} hits, {len(self.misses)} misses; {self.num_recomputed} tokens "
            f"recomputed, {self.num_computed} computed"
        )
        return "\n".join(lines)
