"""Run selected tokens of a prompt through SGLang's model, fill slots of its KV pool from stored
chunks, and take chunks out of it."""

import logging
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from ragboost.chunk_cache.core.self_test import LENGTH, self_test_engine
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.core.slot_filler import SlotFiller
from ragboost.chunk_cache.model.nested_model import NestedModel
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.ranks import Ranks, together
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.sglang.compat import (
    allocate_slots,
    attention_layers,
    between_passes,
    describe_layer,
    engine_forward,
    extend_batch,
    find_ranks,
    free_slots,
    nested_forward,
    num_passes,
    read_pool,
    write_pool,
)
from ragboost.chunk_cache.store.chunk import KV
from ragboost.errors import UnsupportedModelError


class SGLangModel(NestedModel):
    def __init__(self, runner: Any, *, ranks: Ranks) -> None:
        self._runner = runner
        layers = attention_layers(runner.model)
        self.layers = [layer for _, layer in layers]
        super().__init__(
            runner.model,
            runner.model_config.hf_config,
            [describe_layer(name, layer) for name, layer in layers],
            vocabulary=int(runner.model_config.vocab_size),
            dtype=runner.dtype,
            device=torch.device(runner.device),
            ranks=ranks,
        )

    def run(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: RequestCache, plan: ForwardPlan
    ) -> torch.Tensor:
        with nested_forward(self._runner, _PlannedAttention(self, cache, plan)):
            output = self.model.forward(ids, positions, extend_batch(ids, positions))
        logits: torch.Tensor = output.next_token_logits[-1]
        return logits


class _PlannedAttention:
    def __init__(self, model: SGLangModel, cache: RequestCache, plan: ForwardPlan) -> None:
        self._model, self._cache, self._plan = model, cache, plan

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> torch.Tensor:
        if any(option is not None for option in options.values()):
            raise UnsupportedModelError(
                f"{self._model.name} gives its attention {', '.join(sorted(options))}"
            )
        return self._model.attend(
            layer.layer_id, query, key, value, cache=self._cache, plan=self._plan
        )


logger = logging.getLogger(__name__)


class PoolFiller(SlotFiller):
    """Chunk reuse over one KV pool. Each rank stores the KV of its own heads."""

    def __init__(
        self, runner: Any, *, ranks: Ranks, settings: EngineChunkSettings, rows: int
    ) -> None:
        self._runner, model = runner, SGLangModel(runner, ranks=ranks)
        self._layers = model.layers
        super().__init__(model, settings=settings, rows=rows)

    @property
    def num_passes(self) -> int:
        return num_passes(self._runner)

    def read_layer(self, number: int, slots: torch.Tensor) -> KV:
        return read_pool(self._runner, number, slots)

    def write_layer(self, number: int, kv: KV, slots: torch.Tensor) -> None:
        write_pool(self._runner, self._layers[number], kv, slots)

    def ordered(self) -> AbstractContextManager[None]:
        return between_passes(self._runner)


def make_filler(context: Any, tree: Any, *, settings: EngineChunkSettings, rows: int) -> PoolFiller:
    ranks, runner = find_ranks(context), context.tp_worker.model_runner
    make = partial(PoolFiller, runner, ranks=ranks, settings=settings, rows=rows)
    filler = together(ranks, make)
    result = together(ranks, partial(_self_test, filler, runner, tree))
    logger.info("chunk reuse is on: %s", result)
    return filler


def _self_test(filler: PoolFiller, runner: Any, tree: Any) -> object:
    count = -(-LENGTH // tree.page_size) * tree.page_size
    slots = allocate_slots(tree, 2 * count)
    if slots is None:
        raise UnsupportedModelError(f"the KV pool has fewer than {2 * count} slots")
    try:
        return self_test_engine(
            filler,
            partial(engine_forward, runner),
            slots[:LENGTH],
            slots[count : count + LENGTH],
            vocabulary=int(runner.model_config.vocab_size),
        )
    finally:
        free_slots(tree, slots)
