"""Chunk reuse of one engine: choose what of a prompt to compute again, and store missing chunks.

Both are done in pieces between the scheduler's steps. Knows sequences and stored chunks. Does not
know how steps are planned. Belongs to the engine thread, but for `prefetch`.
"""

import logging
from collections import OrderedDict
from dataclasses import dataclass

import torch

from ragboost.chunk_cache.assemble import Assembly, TokenSource
from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.pace import Pace
from ragboost.chunk_cache.prefill import Counts
from ragboost.chunk_cache.recompute import rows_to_compute
from ragboost.chunk_cache.reuse import ChunkReuse
from ragboost.chunk_cache.selection import make_policy
from ragboost.engine.runtime.chunk_task import ChunkTask
from ragboost.engine.runtime.request import EngineRequest

logger = logging.getLogger(__name__)

MAX_MISSING = 1024
"""Chunks that wait to be stored; more are forgotten, the oldest first."""

WORTH_LOOKING = 2
"""With fewer reused tokens than one for so many missing ones everything is computed, and exact. A
model of 14 layers breaks even there with the default policy; deeper ones a little earlier."""

Chunk = tuple[str | None, tuple[int, ...], tuple[int, ...]]
"""Cache salt, system prompt and chunk, the latter as token ids."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a prompt's stored chunks leave to compute.

    Attributes:
        rows: positions to compute, (rows,), ascending; the last token is among them.
        counts: where the tokens come from.
        missing: chunks that were not stored.
    """

    rows: torch.Tensor
    counts: Counts
    missing: list[Chunk]


@dataclass(slots=True)
class ReuseTotals:
    """Prompt tokens of requests that asked for reuse, since the start."""

    exact: int = 0
    approximate: int = 0
    recomputed: int = 0
    computed: int = 0
    chunks_stored: int = 0


def _is_worth_looking(assembly: Assembly) -> bool:
    """Whether choosing can save more than it costs: its first layers are computed for the missing
    tokens, too, which are computed again afterwards."""
    num_missing = int((assembly.source == TokenSource.MISSING).sum())
    return WORTH_LOOKING * len(assembly.candidates) >= num_missing


class ChunkScheduler:
    """See the module.

    Args:
        reuse: the model's chunks.

    Attributes:
        totals: what became of the prompts so far.
    """

    def __init__(self, reuse: ChunkReuse) -> None:
        self.reuse = reuse
        self.totals = ReuseTotals()
        self._choosing: tuple[EngineRequest, ChunkTask[Choice]] | None = None
        self._missing: OrderedDict[Chunk, None] = OrderedDict()
        self._storing: ChunkTask[int] | None = None

    @property
    def choosing(self) -> EngineRequest | None:
        """The sequence whose choice has begun and is not done."""
        return self._choosing[0] if self._choosing is not None else None

    @property
    def has_work(self) -> bool:
        """Whether chunks wait to be stored."""
        return self._storing is not None or bool(self._missing)

    def prefetch(self, sequence: EngineRequest) -> None:
        """Tell the store what a sequence that waits will ask for; any thread may call it."""
        if sequence.parts is not None:
            system = sequence.parts.system
            chunks = self.reuse.for_tenant(sequence.salt).chunks
            keys = [chunks.key((), system)] if system else []
            for chunk in sequence.parts.chunks:
                keys += chunks.keys(system, chunk)
            self.reuse.store.prefetch(keys)

    def choose(self, sequence: EngineRequest, *, rows: int) -> None:
        """Go on choosing what to compute of a sequence, by one piece of so many rows. It is done
        when the sequence has left the state `is_choosing`."""
        if self._choosing is None:
            self._choosing = (
                sequence,
                ChunkTask(lambda pace: self._choice(sequence, pace), name="ragboost-choosing"),
            )
        owner, job = self._choosing
        assert owner is sequence, "one sequence at a time"
        if not job.advance(rows=rows):
            return
        self._choosing = None
        if job.result is None:
            logger.warning("computing a whole prompt instead of reusing chunks: %s", job.error)
            sequence.compute_all()
            return
        self._apply(sequence, job.result)

    def store_missing(self, *, rows: int) -> None:
        """Go on storing chunks, by one piece of so many rows."""
        if self._storing is None:
            (salt, system, chunk), _ = self._missing.popitem(last=False)
            self._storing = ChunkTask(
                lambda pace: self._precompute(salt, system, chunk, pace=pace),
                name="ragboost-storing",
            )
        if self._storing.advance(rows=rows):
            if self._storing.error is not None:
                logger.warning("a chunk was not stored: %s", self._storing.error)
            self.totals.chunks_stored += self._storing.result or 0
            self._storing = None

    def forget(self, sequence: EngineRequest) -> None:
        """Stop choosing for a sequence, if that is going on; its KV is not touched any more."""
        if self._choosing is not None and self._choosing[0] is sequence:
            self._choosing[1].cancel()
            self._choosing = None

    def close(self) -> None:
        """Stop everything, and close the store."""
        if self._choosing is not None:
            self.forget(self._choosing[0])
        if self._storing is not None:
            self._storing.cancel()
        self._storing = None
        self._missing.clear()
        self.reuse.store.close()

    def _choice(self, sequence: EngineRequest, pace: Pace) -> Choice:
        parts, kv, approx = sequence.parts, sequence.kv, sequence.approx
        assert parts is not None, "a sequence without parts"
        assert kv is not None, "a sequence without a KV cache"
        assert approx is not None, "a sequence that is exact"
        num_tokens = sequence.num_prompt_tokens
        with torch.inference_mode():
            own = RequestCache(
                [
                    (keys[None, :, :num_tokens], values[None, :, :num_tokens])
                    for keys, values in kv.layers
                ]
            )
            pieces = [piece.tokens for piece in parts.pieces]
            assembly = self.reuse.for_tenant(sequence.salt).assemble(
                parts.system, pieces, parts.question, into=own, num_held=sequence.num_computed
            )
            policy, ratio = make_policy(approx.policy), approx.ratio
            if policy.looks_at_all and ratio > 0 and not _is_worth_looking(assembly):
                ratio = 1.0
            selected = self.reuse.select(assembly, policy=policy, ratio=ratio, pace=pace)
            missing = [
                (sequence.salt, parts.system, piece.tokens)
                for piece, (start, _) in zip(parts.pieces, assembly.chunks, strict=True)
                if piece.is_chunk and assembly.source[start] == TokenSource.MISSING
            ]
            return Choice(
                rows_to_compute(assembly, selected), Counts.of(assembly, selected), missing
            )

    def _apply(self, sequence: EngineRequest, choice: Choice) -> None:
        counts = choice.counts
        sequence.compute_rows(choice.rows, counts)
        self.totals.exact += counts.num_exact
        self.totals.approximate += counts.num_approximate
        self.totals.recomputed += counts.num_recomputed
        self.totals.computed += counts.num_computed
        for chunk in choice.missing:
            self._missing[chunk] = None
        while len(self._missing) > MAX_MISSING:
            self._missing.popitem(last=False)

    def _precompute(
        self, salt: str | None, system: tuple[int, ...], chunk: tuple[int, ...], *, pace: Pace
    ) -> int:
        with torch.inference_mode():
            return self.reuse.for_tenant(salt).chunks.precompute(system, [chunk], pace=pace)
