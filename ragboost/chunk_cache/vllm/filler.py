"""The worker's side: fill approximate KV before a step, and take chunks out of the cache after it.

Knows the model, the paged cache and the store. Does not know how requests are scheduled.
"""

import logging
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch

from ragboost.chunk_cache.core.fill import FilledPrompt, FillSteps, fill_steps
from ragboost.chunk_cache.core.library import ChunkLibrary
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.token_origins import TokenOrigins
from ragboost.chunk_cache.model.attention import make_backend
from ragboost.chunk_cache.model.pace import Pace, advance
from ragboost.chunk_cache.model.paged_cache import PagedLayer
from ragboost.chunk_cache.model.ranks import Ranks
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.contract import KVStore
from ragboost.chunk_cache.store.keys import tokens_digest
from ragboost.chunk_cache.vllm.model import EngineModel
from ragboost.chunk_cache.vllm.work import ChunkCapture, PromptFill, StepWork

logger = logging.getLogger(__name__)


class ChunkFiller:
    """Chunk reuse in one worker.

    Args:
        runner: vLLM's model runner, with the model loaded and the cache allocated.
        config: vLLM's configuration.
        ranks: the workers that hold the model together.
        settings: our own.

    Attributes:
        library: the stored chunks.
        outcomes: the tokens of each filled request by origin, until the scheduler's side takes
            them.
        failed_blocks: blocks whose filling failed, until vLLM takes them.
        failed_requests: requests whose filling failed, until they end.
        done_requests: requests whose paced filling ended, until vLLM takes them.
        num_layers, block_size, can_measure: see `WorkerView`.

    Raises:
        UnsupportedModelError: reuse is impossible with this model or cache.
    """

    can_measure = True

    def __init__(
        self, runner: Any, config: Any, *, ranks: Ranks, settings: EngineChunkSettings
    ) -> None:
        device = torch.device(runner.device)
        self.model = EngineModel(runner.get_model(), config, device=device, ranks=ranks)
        self.num_layers = self.model.num_layers
        self.block_size = int(config.cache_config.block_size)
        num_slots = int(config.cache_config.num_gpu_blocks) * self.block_size
        self.layers = [
            PagedLayer(
                layer.kv_cache,
                partial(layer.impl.do_kv_cache_update, layer),
                num_slots=num_slots,
                block_size=self.block_size,
                shapes=(
                    (layer.num_kv_heads, layer.head_size),
                    (layer.num_kv_heads, layer.head_size_v),
                ),
            )
            for layer in self.model.layers
        ]
        self.library = ChunkLibrary.of(self.model, self._make_store(settings))
        self.outcomes: dict[str, TokenOrigins] = {}
        self.failed_blocks: set[int] = set()
        self.failed_requests: set[str] = set()
        self.done_requests: set[str] = set()
        self._waiting: dict[str, PromptFill] = {}  # paced, in the order of their arrival
        self._steps: FillSteps | None = None  # of the first of them, once it has begun
        self.backend = make_backend(settings.backend)
        self._pace = Pace(int(config.scheduler_config.max_num_batched_tokens))

    def take_dropped(self) -> list[str]:
        """Return nothing: the scheduler's side and this one share the store."""
        return []

    def take_reset(self) -> bool:
        """Return False: the store was emptied at once."""
        return False

    def forget_chunks(self) -> None:
        """Forget all stored chunks; later ones are those of the present weights."""
        self.library.store.clear()
        self.check_weights()

    def forget(self, request_ids: Collection[str]) -> None:
        """Forget requests that have ended."""
        self.failed_requests.difference_update(request_ids)

    def check_weights(self) -> None:
        """After new weights, find what was stored with these only."""
        old, self.library = self.library, self.library.renewed(self.model)
        if self.library is not old:
            logger.info("the model has new weights: chunks of the old ones are not reused")

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def begin(self, work: StepWork) -> None:
        """Do the part of a step that comes before the model: fill prompts, and continue with those
        that take several steps, one after the other.

        If a filling fails, its blocks are reported as failed, and vLLM does with the request what
        its `kv_load_failure_policy` says: an error here would end the engine.
        """
        for fill in work.fills:
            if fill.is_paced:
                self._waiting[fill.request_id] = fill
                continue
            self._advance(fill, self._begin(fill), rows=None)
        for request_id in work.cancelled:
            if request_id in self._waiting:
                self._end(request_id)
        if self._waiting and work.rows:
            fill = next(iter(self._waiting.values()))
            self._steps = self._steps or self._begin(fill)
            if self._advance(fill, self._steps, rows=work.rows):
                self._end(fill.request_id)

    def _end(self, request_id: str) -> None:
        if next(iter(self._waiting)) == request_id:
            self._steps = None
        del self._waiting[request_id]
        self.done_requests.add(request_id)

    def _advance(self, fill: PromptFill, steps: FillSteps, *, rows: int | None) -> bool:
        """Continue a filling, see `advance`; return True if it has ended."""
        is_fine = has_ended = True
        try:
            has_ended = advance(steps, self._pace, rows=rows) is not None
        except Exception:
            logger.exception("the KV of a prompt could not be filled")
            is_fine = False
        if self.model.ranks.agree(is_fine):
            return has_ended
        self._fail(fill)
        return True

    def _fail(self, fill: PromptFill) -> None:
        """Let vLLM compute the blocks of a filling that failed."""
        first, last = fill.plan.held // self.block_size, (fill.plan.stop - 1) // self.block_size
        self.failed_blocks.update(fill.blocks[first : last + 1])
        self.failed_requests.add(fill.request_id)
        self.outcomes.pop(fill.request_id, None)

    def _begin(self, fill: PromptFill) -> FillSteps:
        """Yield the rows computed by each step of a filling; its KV is written at the end."""
        plan, prefix = fill.plan, None
        if plan.held:
            prefix = self.read(plan.tokens, fill.blocks, start=0, stop=plan.held, is_exact=False)
        steps = fill_steps(self.model, plan, prefix=prefix, backend=self.backend, pace=self._pace)
        filled = yield from steps
        self._write(fill, filled)
        return filled

    def _write(self, work: PromptFill, filled: FilledPrompt) -> None:
        plan = work.plan
        self.write(filled.cache.layers, work.blocks, start=plan.held, stop=plan.stop)
        filled.cache.layers.clear()
        if filled.measure is not None:
            start, stop = plan.request.chunks[-1]
            key = self.library.key(plan.tokens[start:stop], tenant=plan.request.tenant)
            self.library.measure(key, filled.measure)
        self.outcomes[work.request_id] = filled.counts

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def capture(self, work: ChunkCapture) -> None:
        """Copy a chunk's KV into the store, if that succeeds. A chunk that was computed over KV
        whose filling failed is left out."""
        if work.request_id in self.failed_requests or self.failed_blocks.intersection(work.blocks):
            return
        try:
            self._capture(work)
        except Exception:
            logger.exception("a chunk could not be stored")

    def _capture(self, work: ChunkCapture) -> ChunkKV:
        stop = len(work.tokens)
        kv = self.read(
            work.tokens, work.blocks, start=work.start, stop=stop, is_exact=work.is_exact
        )
        self.library.add(work.key, kv.to(torch.device("cpu")), is_first=work.is_first)
        return kv

    def write(self, layers: Sequence[Any], blocks: Sequence[int], *, start: int, stop: int) -> None:
        """Write the KV of the positions [start, stop) of a dense cache into blocks."""
        slots = self._slots(blocks, start, stop)
        for paged, dense in zip(self.layers, layers, strict=True):
            paged.write(dense.keys[:, :, start:stop], dense.values[:, :, start:stop], slots)

    def close(self) -> None:
        """Write what is only in memory to disk, if there is a disk tier."""
        self.library.store.close()

    def read(
        self, tokens: list[int], blocks: Sequence[int], *, start: int, stop: int, is_exact: bool
    ) -> ChunkKV:
        slots = self._slots(blocks, start, stop)
        return ChunkKV(
            tuple(tokens[start:stop]),
            base=start,
            layers=tuple(layer.read(slots) for layer in self.layers),
            regime=self.library.regime,
            length=len(tokens),
            exact_after=tokens_digest(tokens[:start]) if is_exact else None,
        )

    def _make_store(self, settings: EngineChunkSettings) -> KVStore:
        return settings.make_store()

    def _slots(self, blocks: Sequence[int], start: int, stop: int) -> torch.Tensor:
        table = torch.tensor(list(blocks), device=self.model.device)
        positions = torch.arange(start, stop, device=self.model.device)
        return table[positions // self.block_size] * self.block_size + positions % self.block_size
