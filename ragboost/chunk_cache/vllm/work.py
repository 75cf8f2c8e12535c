"""Orders and results of a step: all that the scheduler and the worker know of each other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.token_origins import TokenOrigins


@dataclass(frozen=True, slots=True)
class PromptFill:
    """Approximate KV to write before a step.

    Attributes:
        request_id: id of the request.
        plan: what to reuse.
        blocks: its block table.
        is_paced: the request waits while it is filled in several steps.
    """

    request_id: str
    plan: PromptPlan
    blocks: Sequence[int]
    is_paced: bool = False


@dataclass(frozen=True, slots=True)
class ChunkCapture:
    """A chunk to take out of the cache after a step.

    Attributes:
        request_id: id of the request that computes it.
        key: the chunk's key.
        tokens: token ids of the prompt up to the chunk's end.
        start: position of its first token.
        blocks: block table of the prompt.
        is_exact: the KV equals that of an ordinary prefill.
        is_first: no other chunk precedes it.
    """

    request_id: str
    key: str
    tokens: list[int]
    start: int
    blocks: Sequence[int]
    is_exact: bool
    is_first: bool


@dataclass(slots=True)
class StepWork:
    """The worker's part of one step.

    Attributes:
        fills: prompts to fill.
        captures: chunks to store.
        cancelled: requests whose paced filling ends early.
        rows: tokens that paced fillings may compute.
        dropped: keys of chunks to remove from the store, if the scheduler's side keeps the list.
        is_reset: all chunks are to be forgotten before anything else.
    """

    fills: list[PromptFill] = field(default_factory=list)
    captures: list[ChunkCapture] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    rows: int = 0
    dropped: list[str] = field(default_factory=list)
    is_reset: bool = False


class WorkerView(Protocol):
    """View of the worker's side that the scheduler's has.

    Attributes:
        library: the stored chunks.
        outcomes: the tokens of filled requests by origin, until the scheduler's side takes them.
        failed_requests: requests whose filling failed, until the scheduler's side removes them.
        num_layers: layers of the model.
        block_size: tokens of a block.
        can_measure: chunks can be measured.
    """

    library: ChunkLibrary
    outcomes: dict[str, TokenOrigins]
    failed_requests: set[str]
    num_layers: int
    block_size: int
    can_measure: bool

    def take_dropped(self) -> list[str]:
        """Return the keys of chunks that the worker must remove from its store, once."""
        ...

    def take_reset(self) -> bool:
        """Return True if the worker must forget all chunks, once."""
        ...

    def forget_chunks(self) -> None:
        """Forget all stored chunks. Nothing stored before is found from now on."""
        ...
