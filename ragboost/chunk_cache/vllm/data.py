"""Messages between the scheduler and the workers: orders, and reports of several ranks.

Does not import vLLM.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ragboost.chunk_cache.core.fill_budget import FillSpeed
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.reusing_request import ChunkCapture
from ragboost.chunk_cache.store.chunk import ChunkKV


class PromptFill(NamedTuple):
    request_id: str
    plan: PromptPlan
    blocks: Sequence[int]  # the request's block table


class BlockCapture(NamedTuple):
    request_id: str
    chunk: ChunkCapture
    blocks: Sequence[int]  # the request's block table


@dataclass(slots=True)
class StepWork:
    fills: list[PromptFill] = field(default_factory=list)
    captures: list[BlockCapture] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)  # requests whose filling ends early
    rows: int = 0  # tokens that fillings may compute
    # Keys to remove from the memory of ranks; True: and from disk and the remote store.
    dropped: dict[str, bool] = field(default_factory=dict)
    num_resets: int = 0  # so far; after another one ranks forget all chunks
    generation: int = 0  # of the weights, see `RankReport`, for which this was ordered
    # Tokens of the chunks that ranks are to load from disk or the remote store, by key.
    wanted: dict[str, int] = field(default_factory=dict)
    num_tokens: int = 0  # that the step computes, of all requests
    is_prefill: bool = False  # most of them are of prompts
    # Requests that wait for KV that nobody fills: the scheduler's side has failed.
    unfilled: dict[str, list[int]] = field(default_factory=dict)  # with their blocks


class WorkerView(Protocol):
    """The worker as the scheduler sees it, or the image of several in other processes."""

    library: ChunkLibrary
    outcomes: dict[str, TokenOrigins]  # of filled requests, until the scheduler takes them
    failed_requests: set[str]  # whose filling failed, until the scheduler removes them
    speed: FillSpeed | None  # None: it fills whatever is stored
    num_layers: int
    block_size: int
    can_measure: bool
    generation: int  # of the weights, as last reported by several ranks
    num_resets: int  # that several ranks are to follow

    def take_dropped(self) -> dict[str, bool]:
        """Return the keys of chunks that the ranks must remove, once, see `StepWork.dropped`."""
        ...

    def take_wanted(self) -> dict[str, int]:
        """Return the chunks that the ranks are to load, once, see `StepWork.wanted`."""
        ...

    def forget_chunks(self) -> None: ...


# Several ranks, in processes of their own.


@dataclass(frozen=True, slots=True)
class ListedChunk(ChunkKV):
    """A stored chunk without its KV, which the ranks hold."""

    key: str = ""
    num_bytes: int = 0  # of its KV on one rank

    @classmethod
    def of(cls, key: str, kv: ChunkKV) -> "ListedChunk":
        return cls(
            kv.tokens,
            kv.base,
            (),
            kv.regime,
            kv.length,
            exact_after=kv.exact_after,
            key=key,
            num_bytes=kv.size_bytes,
        )

    @property
    def size_bytes(self) -> int:
        return self.num_bytes


class CapturedChunk(NamedTuple):
    chunk: ListedChunk
    is_first: bool  # no other chunk precedes it


class RankHello(NamedTuple):
    """A rank once it has checked itself."""

    refusal: str | None  # why chunks cannot be reused
    num_layers: int = 0
    regime: str = ""  # identity of the model's RoPE frequencies
    weights: str = ""  # digest of the weights of all ranks


@dataclass(slots=True)
class RankReport:
    captured: Counter[CapturedChunk] = field(default_factory=Counter)  # by the ranks that did
    loaded: dict[tuple[int, str], ListedChunk] = field(default_factory=dict)  # by rank and key
    absent: set[str] = field(default_factory=set)  # keys that a rank was to load and did not
    late: set[str] = field(default_factory=set)  # that it loads, but a request should not wait
    outcomes: dict[str, TokenOrigins] = field(default_factory=dict)  # of filled requests
    failed: set[str] = field(default_factory=set)  # requests whose filling failed on a rank
    lost: set[str] = field(default_factory=set)  # keys that a rank did not have as listed
    generation: int = 0  # number of times that the weights have changed, or were looked at again
    weights: str = ""  # their digest; empty: as at the start
    num_resets: int = 0  # after how many

    @property
    def _state(self) -> tuple[int, str, int]:
        return self.generation, self.weights, self.num_resets

    def merged(self, other: "RankReport") -> "RankReport":
        return RankReport(
            self.captured + other.captured,
            self.loaded | other.loaded,
            self.absent | other.absent,
            self.late | other.late,
            {**self.outcomes, **other.outcomes},
            self.failed | other.failed,
            self.lost | other.lost,
            *max(self._state, other._state),
        )
