"""Chunk reuse in the engine: select the prompt rows to compute, and store missing chunks.

Both run in pieces between the scheduler's steps. Knows requests and stored chunks. Does not know
how steps are planned. Belongs to the engine thread, except for `prefetch`.
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
from ragboost.engine.runtime.chunk_task import ChunkTask, RowSelector
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError

logger = logging.getLogger(__name__)

MAX_MISSING = 1024
"""Missing chunks queued for storing; beyond that the oldest are dropped."""

MIN_REUSED_SHARE = 1 / 2
"""With fewer reused tokens per missing token the whole prompt is computed, and exact. A model of 14
layers breaks even there with the default policy; deeper ones a little earlier."""

Chunk = tuple[str | None, tuple[int, ...], tuple[int, ...]]
"""Cache salt, ids of the system prompt and ids of the chunk."""


@dataclass(frozen=True, slots=True)
class SelectedRows:
    """Rows of a prompt to compute over its stored chunks.

    Attributes:
        rows: positions, (rows,), ascending; the last token is among them.
        counts: where the tokens come from.
        missing: chunks that were not stored.
    """

    rows: torch.Tensor
    counts: Counts
    missing: list[Chunk]


@dataclass(slots=True)
class ReuseTotals:
    """Prompt tokens of requests with chunk reuse, and chunks stored, since the start."""

    exact: int = 0
    approximate: int = 0
    recomputed: int = 0
    computed: int = 0
    chunks_stored: int = 0


class ChunkScheduler(RowSelector[SelectedRows]):
    """Runs chunk reuse between the steps of one engine.

    Args:
        reuse: the model's chunks.

    Attributes:
        totals: counts since the start.
    """

    def __init__(self, reuse: ChunkReuse) -> None:
        super().__init__()
        self.reuse = reuse
        self.totals = ReuseTotals()
        self._missing: OrderedDict[Chunk, None] = OrderedDict()
        self._storing: ChunkTask[int] | None = None

    @property
    def has_work(self) -> bool:
        """True if chunks wait to be stored."""
        return self._storing is not None or bool(self._missing)

    def prefetch(self, request: EngineRequest) -> None:
        """Tell the store which chunks a waiting request will need; safe in any thread."""
        if (cut := request.prompt.cut) is not None:
            chunks = self.reuse.for_tenant(request.salt).chunks
            keys = [chunks.key((), cut.system)] if cut.system else []
            for chunk in cut.chunks:
                keys += chunks.keys(cut.system, chunk)
            self.reuse.store.prefetch(keys)

    def store_missing(self, *, rows: int) -> None:
        """Advance the storing of missing chunks by one piece of at most `rows` rows."""
        if self._storing is None:
            (salt, system, chunk), _ = self._missing.popitem(last=False)
            self._storing = ChunkTask(
                lambda pace: self._store(salt, system, chunk, pace), name="ragboost-storing"
            )
        if self._storing.advance(rows=rows):
            if self._storing.error is not None:
                logger.warning("a chunk was not stored: %s", self._storing.error)
            self.totals.chunks_stored += self._storing.result or 0
            self._storing = None

    def close(self) -> None:
        """Cancel all work and close the chunk store."""
        super().close()
        if self._storing is not None:
            self._storing.cancel()
        self._storing = None
        self._missing.clear()
        self.reuse.store.close()

    def _select(self, request: EngineRequest, pace: Pace) -> SelectedRows:
        cut, options, kv = request.prompt.cut, request.prompt.reuse, request.kv
        assert cut is not None, "a prompt that is not cut at its chunks"
        assert options is not None, "a request without chunk reuse"
        assert kv is not None, "a request without KV"
        end = request.num_prompt_tokens
        with torch.inference_mode():
            own = [(keys[None, :, :end], values[None, :, :end]) for keys, values in kv.layers]
            assembly = self.reuse.for_tenant(request.salt).assemble(
                cut.system,
                [part.tokens for part in cut.parts],
                cut.question,
                into=RequestCache(own),
                num_held=request.num_computed,
            )
            policy, ratio = make_policy(options.policy), options.ratio
            if policy.looks_at_all and ratio > 0 and not _pays_off(assembly):
                ratio = 1.0
            selected = self.reuse.select(assembly, policy=policy, ratio=ratio, pace=pace)
            missing = [
                (request.salt, cut.system, part.tokens)
                for part, (start, _) in zip(cut.parts, assembly.chunks, strict=True)
                if part.is_chunk and assembly.source[start] == TokenSource.MISSING
            ]
            rows = rows_to_compute(assembly, selected)
            return SelectedRows(rows, Counts.of(assembly, selected), missing)

    def _store(
        self, salt: str | None, system: tuple[int, ...], chunk: tuple[int, ...], pace: Pace
    ) -> int:
        with torch.inference_mode():
            return self.reuse.for_tenant(salt).chunks.precompute(system, [chunk], pace=pace)

    def _apply(self, request: EngineRequest, selected: SelectedRows) -> None:
        counts = selected.counts
        request.compute_rows(selected.rows, counts)
        self.totals.exact += counts.num_exact
        self.totals.approximate += counts.num_approximate
        self.totals.recomputed += counts.num_recomputed
        self.totals.computed += counts.num_computed
        self._missing.update(dict.fromkeys(selected.missing))
        while len(self._missing) > MAX_MISSING:
            self._missing.popitem(last=False)

    def _refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        logger.warning("computing a whole prompt instead of reusing chunks: %s", error)
        request.is_selecting = False


def _pays_off(assembly: Assembly) -> bool:
    """Return whether selection can save more than it costs: a policy that looks at fresh layers
    computes the first ones for missing tokens too, and these are computed again afterwards."""
    num_missing = int((assembly.source == TokenSource.MISSING).sum())
    return len(assembly.candidates) >= MIN_REUSED_SHARE * num_missing
