"""Messages of a worker to the scheduler's process: at the start, and with each step's results.

Does not import vLLM.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.store.chunk import ChunkKV


@dataclass(frozen=True, slots=True)
class ListedChunk(ChunkKV):
    """A stored chunk without its KV, which the ranks hold.

    Attributes:
        key: its key in the ranks' stores.
        num_bytes: bytes of its KV on one rank.
    """

    key: str = ""
    num_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        return self.num_bytes


def list_chunk(key: str, kv: ChunkKV) -> ListedChunk:
    """Return what the scheduler needs to know of a chunk."""
    return ListedChunk(
        kv.tokens,
        kv.base,
        (),
        kv.regime,
        kv.length,
        exact_after=kv.exact_after,
        key=key,
        num_bytes=kv.size_bytes,
    )


class CapturedChunk(NamedTuple):
    """A chunk that a rank has stored.

    Attributes:
        chunk: the chunk.
        is_first: no other chunk precedes it.
    """

    chunk: ListedChunk
    is_first: bool


@dataclass(frozen=True, slots=True)
class RankHello:
    """A rank once it has checked itself.

    Attributes:
        refusal: why chunks cannot be reused; None: they can.
        num_layers: layers of its model.
        regime: identity of the model's RoPE frequencies.
    """

    refusal: str | None
    num_layers: int = 0
    regime: str = ""


@dataclass(slots=True)
class RankReport:
    """Report of the ranks on one step.

    Attributes:
        captured: number of ranks that stored each chunk, in order.
        outcomes: the tokens of each filled request by origin.
        failed: requests whose filling failed on a rank.
        lost: keys of chunks that a rank did not have as they were named.
        generation: number of times that the weights have changed.
    """

    captured: Counter[CapturedChunk] = field(default_factory=Counter)
    outcomes: dict[str, TokenOrigins] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    generation: int = 0

    def merged(self, other: "RankReport") -> "RankReport":
        """Return the report of two sets of ranks."""
        return RankReport(
            self.captured + other.captured,
            {**self.outcomes, **other.outcomes},
            self.failed | other.failed,
            self.lost | other.lost,
            max(self.generation, other.generation),
        )
