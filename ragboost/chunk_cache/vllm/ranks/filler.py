"""The worker's side of a model that several workers hold: fill together, and report.

Every rank stores the KV of its own heads. The scheduler's side, in another process, keeps the list
of what all of them hold, and decides what is removed: so the stores stay equal. Does not know
vLLM.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.ranks import Ranks, together
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.contract import KVStore
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.chunk_cache.vllm.filler import ChunkFiller
from ragboost.chunk_cache.vllm.ranks.report import (
    CapturedChunk,
    ListedChunk,
    RankHello,
    RankReport,
    list_chunk,
)
from ragboost.chunk_cache.vllm.work import ChunkCapture, PromptFill, StepWork
from ragboost.errors import ChunkCacheError, ChunkLostError

logger = logging.getLogger(__name__)


class RankFiller(ChunkFiller):
    """Chunk reuse in one of several workers. All do the same work in the same order.

    Arguments and attributes are those of `ChunkFiller`; `settings.directory` is not used.
    """

    can_measure = False  # the measures compare the heads of all ranks

    def __init__(
        self, runner: Any, config: Any, *, ranks: Ranks, settings: EngineChunkSettings
    ) -> None:
        super().__init__(runner, config, ranks=ranks, settings=settings)
        self._generation = self._told_generation = 0
        self._report = RankReport()

    def hello(self) -> RankHello:
        """Return what the scheduler's side needs to know at the start."""
        return RankHello(None, self.num_layers, self.library.regime)

    def take_report(self) -> RankReport | None:
        """Return what was done since the last report; None: nothing."""
        report, self._report = self._report, RankReport(generation=self._generation)
        report.outcomes, self.outcomes = self.outcomes, {}
        if report == RankReport(generation=self._told_generation):
            return None
        self._told_generation = report.generation
        return report

    def begin(self, work: StepWork) -> None:
        """Do the part of a step that comes before the model, see `ChunkFiller.begin`."""
        if work.is_reset:
            self.library.store.clear()
        found = [self._with_kv(fill) for fill in work.fills]
        super().begin(replace(work, fills=[fill for fill in found if fill is not None]))
        for key in work.dropped:
            self.library.store.discard(key)

    def check_weights(self) -> None:
        """After new weights on any rank, forget all chunks."""
        old = self.library
        super().check_weights()
        if not self.model.ranks.agree(self.library is old):
            self.library.store.clear()
            self._generation += 1
            self._report = RankReport(generation=self._generation)

    def _make_store(self, settings: EngineChunkSettings) -> KVStore:
        if settings.directory:
            logger.warning("several workers keep chunks in memory only, not in `directory`")
        # The scheduler's side bounds the store; twice as much leaves room for a step's chunks, and
        # bounds what is left of a report that got lost.
        return TieredStore(host_bytes=2 * settings.host_bytes)

    def _with_kv(self, fill: PromptFill) -> PromptFill | None:
        """Return a filling with this rank's KV in its plan; None if it fails on a rank."""
        try:
            stored = together(self.model.ranks, partial(self._find, fill.plan))
        except ChunkCacheError:
            self._fail(fill)
            if fill.is_paced:
                self.done_requests.add(fill.request_id)
            return None
        return replace(fill, plan=replace(fill.plan, stored=stored))

    def _find(self, plan: PromptPlan) -> tuple[ChunkKV | None, ...]:
        """Return the KV of the plan's chunks.

        Raises:
            ChunkLostError: a chunk is not stored, or is another version.
        """
        stored: list[ChunkKV | None] = []
        lost = set()
        for listed in plan.stored:
            kv = None
            if isinstance(listed, ListedChunk):
                kv = self.library.store.get(listed.key)
                if kv is None or (kv.base, kv.exact_after) != (listed.base, listed.exact_after):
                    lost.add(listed.key)
            stored.append(kv)
        if lost:
            self._report.lost |= lost
            raise ChunkLostError(f"{len(lost)} chunks are not stored as the scheduler lists them")
        return tuple(stored)

    def _fail(self, fill: PromptFill) -> None:
        super()._fail(fill)
        self._report.failed.add(fill.request_id)

    def _capture(self, work: ChunkCapture) -> ChunkKV:
        kv = super()._capture(work)
        self._report.captured[CapturedChunk(list_chunk(work.key, kv), work.is_first)] = 1
        return kv
