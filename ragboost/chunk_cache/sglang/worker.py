"""Fill slots of SGLang's KV pool from stored chunks, and take chunks out of it."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch

from ragboost.chunk_cache.core.engine.slot_filler import SlotFiller
from ragboost.chunk_cache.core.self_test import LENGTH, self_test_engine
from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.ranks import Ranks, together
from ragboost.chunk_cache.sglang.compat import (
    allocate_slots,
    between_passes,
    engine_forward,
    find_ranks,
    free_slots,
    num_passes,
    read_pool,
    write_pool,
)
from ragboost.chunk_cache.sglang.model import SGLangModel
from ragboost.chunk_cache.store.chunk import KV
from ragboost.errors import UnsupportedModelError

logger = logging.getLogger(__name__)


class PoolFiller(SlotFiller):
    """Chunk reuse over one KV pool. Each rank stores the KV of its own heads."""

    def __init__(
        self, runner: Any, *, ranks: Ranks, settings: EngineChunkSettings, rows: int
    ) -> None:
        self._runner, model = runner, SGLangModel(runner, ranks=ranks)
        self._layers, self._store = model.layers, settings.make_store()
        super().__init__(model, self._store, settings=settings, rows=rows)

    @property
    def num_passes(self) -> int:
        return num_passes(self._runner)

    def forget(self, keys: Sequence[str]) -> None:
        self._store.forget(keys)

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
