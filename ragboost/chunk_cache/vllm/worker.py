"""vLLM's worker with chunk reuse, named in `--worker-cls`: fill approximate KV before a step, and
take chunks out of the cache after it. Several ranks each store the KV of their own heads; the
scheduler decides what is removed, so that their stores stay equal."""

import logging
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms import current_platform

from ragboost.chunk_cache.core.fill import FillSteps
from ragboost.chunk_cache.core.prompt_plan import PromptPlan
from ragboost.chunk_cache.core.request import TokenOrigins
from ragboost.chunk_cache.core.self_test import LENGTH, self_test_engine
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.slot_filler import SlotFiller
from ragboost.chunk_cache.model.ranks import Ranks, together
from ragboost.chunk_cache.store.chunk import KV, ChunkKV
from ragboost.chunk_cache.vllm.compat import engine_forward, find_ranks, paged_layer
from ragboost.chunk_cache.vllm.connector import find_connector
from ragboost.chunk_cache.vllm.data import (
    BlockCapture,
    CapturedChunk,
    ListedChunk,
    PromptFill,
    RankHello,
    RankReport,
    StepWork,
)
from ragboost.chunk_cache.vllm.model import EngineModel
from ragboost.errors import ChunkCacheError, ChunkLostError, UnsupportedModelError

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_worker import Worker as _PlatformWorker
else:
    from vllm.v1.worker.cpu_worker import CPUWorker as _PlatformWorker

logger = logging.getLogger(__name__)

LOAD_PAUSE_S = 0.01
"""Seconds for which a rank in an idle engine waits for a load to end before it reports to the
scheduler, which asks again at once. Else both spin, beside the threads that load."""


class ChunkWorker(_PlatformWorker):  # type: ignore[misc]  # vLLM is untyped here
    """The platform's worker, which gives the connector a filler once the cache is allocated."""

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        super().initialize_from_config(kv_cache_config)
        connector = find_connector()
        if connector is not None:
            connector.start(partial(make_filler, self.model_runner))

    def reload_weights(self, *args: Any, **kwargs: Any) -> None:
        super().reload_weights(*args, **kwargs)
        _check_weights()

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        _check_weights()


class BlockFiller(SlotFiller):
    can_measure = True
    generation = num_resets = 0  # of several ranks, see `RankReport`

    def __init__(
        self, runner: Any, config: Any, *, ranks: Ranks, settings: EngineChunkSettings
    ) -> None:
        device = torch.device(runner.device)
        model = EngineModel(runner.get_model(), config, device=device, ranks=ranks)
        rows = int(config.scheduler_config.max_num_batched_tokens)
        super().__init__(model, settings=settings, rows=rows)
        self.num_layers = model.num_layers
        self.block_size = int(config.cache_config.block_size)
        self.outcomes: dict[str, TokenOrigins] = {}  # until the scheduler takes them
        self.failed_blocks: set[int] = set()  # until vLLM takes them
        self.failed_requests: set[str] = set()  # until they end
        self.done_requests: set[str] = set()  # whose filling has ended, until vLLM takes them
        self._layers = [paged_layer(layer, config) for layer in model.layers]
        self._fills: dict[str, PromptFill] = {}  # in the order of their arrival
        self._steps: FillSteps | None = None  # of the first of them, once it has begun

    def read_layer(self, number: int, slots: torch.Tensor) -> KV:
        return self._layers[number].read(slots)

    def write_layer(self, number: int, kv: KV, slots: torch.Tensor) -> None:
        self._layers[number].write(*kv, slots)

    def slots(self, blocks: Sequence[int], start: int, stop: int) -> torch.Tensor:
        table = torch.tensor(list(blocks), device=self.model.device)
        positions = torch.arange(start, stop, device=self.model.device)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size

    def take_dropped(self) -> dict[str, bool]:
        return {}

    def take_wanted(self) -> dict[str, int]:
        return {}

    def forget_chunks(self) -> None:
        self.library.store.clear()
        self.check_weights()

    def check_weights(self) -> bool:
        """After new weights, find no chunk of the old ones, and fill no prompt with them."""
        is_same: bool = super().check_weights()
        if not is_same:
            for fill in [*self._fills.values()]:
                self._fail(fill)
                self._end(fill.request_id)
        return is_same

    def forget(self, request_ids: Collection[str]) -> None:
        self.failed_requests.difference_update(request_ids)

    def fill_step(self, work: StepWork) -> None:
        """Continue with the prompts of earlier steps, one after the other, and take those of this
        one: the pass of this step may compute blocks that they share, which vLLM hashes when it
        schedules them. vLLM computes the blocks of a filling that fails: an error would end the
        engine."""
        began = time.perf_counter()
        for request_id in work.cancelled:
            if request_id in self._fills:
                self._end(request_id)
        for request_id, blocks in work.unfilled.items():
            self.failed_blocks.update(blocks)
            self.done_requests.add(request_id)
        rows = work.rows
        while self._fills and rows > 0:
            fill = next(iter(self._fills.values()))
            if not self._advance(fill, rows=rows):
                break
            self._end(fill.request_id)
            rows -= max(1, fill.plan.num_to_compute(self.num_layers))
        self._fills.update((fill.request_id, fill) for fill in work.fills)
        self._pass_began += time.perf_counter() - began  # the step's pass takes the rest

    def capture_step(self, work: StepWork) -> None:
        """Copy the chunks that a step has computed into the store."""
        self.end_pass()
        for capture in work.captures:
            try:
                self._capture(capture)
            except Exception:
                logger.exception("a chunk could not be stored")

    def _capture(self, capture: BlockCapture) -> ChunkKV:
        chunk = capture.chunk
        slots = self.slots(capture.blocks, chunk.start, len(chunk.tokens))
        kv: ChunkKV = self.capture(chunk, slots)
        return kv

    def _end(self, request_id: str) -> None:
        if next(iter(self._fills)) == request_id:
            self._steps = None
        del self._fills[request_id]
        self.done_requests.add(request_id)

    def _advance(self, fill: PromptFill, *, rows: int) -> bool:
        """Begin or continue a filling; return True if it has ended."""
        plan, filled, is_fine = fill.plan, None, True
        try:
            if self._steps is None:
                self._steps = self.begin(plan, self.slots(fill.blocks, 0, plan.prefix_tokens))
            filled = self.advance(self._steps, rows=rows)
            if filled is not None:
                self.finish(plan, filled, self.slots(fill.blocks, plan.prefix_tokens, plan.stop))
        except Exception:
            logger.exception("the KV of a prompt could not be filled")
            is_fine = False
        if not self.model.ranks.agree(is_fine):
            self._fail(fill)
            return True
        if filled is not None:
            self.outcomes[fill.request_id] = filled.counts
        return filled is not None

    def _fail(self, fill: PromptFill) -> None:
        first, last = (
            fill.plan.prefix_tokens // self.block_size,
            (fill.plan.stop - 1) // self.block_size,
        )
        self.failed_blocks.update(fill.blocks[first : last + 1])
        self.failed_requests.add(fill.request_id)
        self.outcomes.pop(fill.request_id, None)


class RankFiller(BlockFiller):
    """Chunk reuse in one of several workers. All do the same work in the same order."""

    can_measure = False  # the measures compare the heads of all ranks

    def __init__(
        self, runner: Any, config: Any, *, ranks: Ranks, settings: EngineChunkSettings
    ) -> None:
        super().__init__(runner, config, ranks=ranks, settings=settings)
        self._reported_generation = 0
        self._report = RankReport()
        # Keys that the scheduler wants to have loaded; True: it knows that they are late.
        self._loading: dict[str, bool] = {}

    def hello(self) -> RankHello:
        return RankHello(None, self.num_layers, self.library.regime, self.library.identity.model)

    def take_report(self) -> RankReport | None:
        """Return what was done since the last report; None: nothing."""
        self._note_loads()
        report, self._report = self._report, self._new_report()
        report.outcomes, self.outcomes = self.outcomes, {}
        is_new = report.generation != self._reported_generation
        if not is_new and report == self._new_report():
            return None
        self._reported_generation = report.generation
        return report

    def fill_step(self, work: StepWork) -> None:
        is_idle = not (work.num_tokens or work.fills or self._fills)
        if work.num_resets != self.num_resets and not is_idle:  # vLLM may sleep without weights
            self.num_resets = work.num_resets
            self.library.store.clear()
            if self.check_weights():
                self._begin_generation()
        self.library.store.forget([self._own(key) for key in work.dropped])
        for key in (key for key, everywhere in work.dropped.items() if everywhere):
            self.library.store.discard(self._own(key))
        self.library.store.prefetch({self._own(key): count for key, count in work.wanted.items()})
        self._loading.update(dict.fromkeys(work.wanted, False))
        awaited = [self._own(key) for key, is_late in self._loading.items() if not is_late]
        if is_idle and awaited and all(self.library.store.is_loading([own]) for own in awaited):
            self.library.store.wait_for_load(timeout_s=LOAD_PAUSE_S)
        fills = [self._with_kv(fill) for fill in work.fills]
        super().fill_step(replace(work, fills=[fill for fill in fills if fill is not None]))

    def capture_step(self, work: StepWork) -> None:
        if work.generation != self.generation:  # its keys are of the old weights
            work = replace(work, captures=[])
        super().capture_step(work)

    def check_weights(self) -> bool:
        """After new weights on any rank, forget all chunks."""
        is_same = super().check_weights()
        if not is_same:
            self._begin_generation()
        return is_same

    def _begin_generation(self) -> None:
        self.library.store.forget()
        self._loading.clear()
        self.generation += 1
        self._report = self._new_report()

    def _new_report(self) -> RankReport:
        weights = self.library.identity.model if self.generation else ""
        return RankReport(generation=self.generation, weights=weights, num_resets=self.num_resets)

    def _own(self, key: str) -> str:
        return f"{key}-{self.model.ranks.rank}"

    def _note_loads(self) -> None:
        """Report the loads that have ended, and once those that take longer than computing."""
        for key, is_late in [*self._loading.items()]:
            own = self._own(key)
            if self.library.store.is_on_its_way(own):
                if not is_late and not self.library.store.is_loading([own]):
                    self._loading[key] = True
                    self._report.late.add(key)
                continue
            del self._loading[key]
            kv = self.library.store.get(own)
            if kv is None:
                self._report.absent.add(key)
            else:
                self._report.loaded[self.model.ranks.rank, key] = ListedChunk.of(key, kv)

    def _with_kv(self, fill: PromptFill) -> PromptFill | None:
        """Return a filling with this rank's KV in its plan; None if it fails on a rank."""
        try:
            stored = together(self.model.ranks, partial(self._find, fill.plan))
        except ChunkCacheError:
            self._fail(fill)
            self.done_requests.add(fill.request_id)
            return None
        return fill._replace(plan=replace(fill.plan, stored=stored))

    def _find(self, plan: PromptPlan) -> tuple[ChunkKV | None, ...]:
        """Return the KV of the plan's chunks; `ChunkLostError`: one is not stored as listed."""
        stored: list[ChunkKV | None] = []
        lost = set()
        for listed in plan.stored:
            kv = None
            if isinstance(listed, ListedChunk):
                kv = self.library.store.get(self._own(listed.key))
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

    def _capture(self, capture: BlockCapture) -> ChunkKV:
        chunk = capture.chunk
        own = chunk._replace(key=self._own(chunk.key))
        kv = super()._capture(capture._replace(chunk=own))
        self._report.captured[CapturedChunk(ListedChunk.of(chunk.key, kv), chunk.is_first)] = 1
        return kv


def make_filler(runner: Any, config: Any, settings: EngineChunkSettings) -> BlockFiller:
    """Return the filler of this worker, if its model passes the self-test."""
    ranks = find_ranks(config)
    kind = BlockFiller
    if ranks.size > 1:
        kind = RankFiller
        # The scheduler bounds the memory; twice as much leaves room for a step's chunks, and bounds
        # what is left of a report that got lost.
        settings = settings.model_copy(update={"host_bytes": 2 * settings.host_bytes})
    filler = together(ranks, partial(kind, runner, config, ranks=ranks, settings=settings))
    result = together(ranks, partial(_self_test, filler, runner, config))
    logger.info("chunk reuse is on: %s", result)
    return filler


def _self_test(filler: BlockFiller, runner: Any, config: Any) -> object:
    """Run the self-test in blocks 1, 2, ... of the cache, which must be unused."""
    count = -(-LENGTH // filler.block_size)
    if int(config.cache_config.num_gpu_blocks) <= 2 * count:
        raise UnsupportedModelError(f"the cache has fewer than {2 * count + 1} blocks")
    return self_test_engine(
        filler,
        partial(engine_forward, runner, config),
        filler.slots(range(1, 1 + count), 0, LENGTH),
        filler.slots(range(1 + count, 1 + 2 * count), 0, LENGTH),
        vocabulary=int(config.model_config.get_vocab_size()),
    )


def _check_weights() -> None:
    connector = find_connector()
    if connector is not None and connector.filler is not None:
        connector.filler.check_weights()
