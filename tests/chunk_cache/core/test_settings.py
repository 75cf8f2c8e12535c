"""Wrong settings stop the engine when it starts, with the name of the setting."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.attention.varlen import VarlenAttention
from ragboost.chunk_cache.store.background import WRITE_BEHIND_BYTES
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.errors import RagBoostError
from tests.eventually import eventually


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ({"hosts": 1}, "hosts"),
        ({"host_bytes": "4 GB"}, "host_bytes"),
        ({"host_bytes": True}, "host_bytes"),
        ({"host_bytes": -1}, "host_bytes"),
        ({"ratio": 2}, "ratio"),
        ({"policy": "best"}, "best"),
    ],
)
def test_a_wrong_setting_is_named(told: dict[str, Any], named: str) -> None:
    with pytest.raises(RagBoostError, match=named):
        EngineChunkSettings.read(told)


def test_memory_for_kv_on_its_way_to_a_disk_counts_as_host_memory(tmp_path: Path) -> None:
    settings = EngineChunkSettings.read({"directory": str(tmp_path), "host_bytes": 4 << 30})
    store = settings.make_store()
    assert store.memory.capacity_bytes == (4 << 30) - WRITE_BEHIND_BYTES
    store.close()
    only_memory = EngineChunkSettings.read({"host_bytes": 4 << 30}).make_store()
    assert only_memory.memory.capacity_bytes == 4 << 30


def test_a_store_with_a_directory_opens_again_with_its_chunks(tmp_path: Path) -> None:
    settings = EngineChunkSettings.read({"directory": str(tmp_path), "host_bytes": 1 << 20})
    layers = ((torch.ones(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)),)
    store = settings.make_store()
    store.put("a" * 32, ChunkKV((1, 2, 3), 0, layers, "", 3))
    store.close()

    again = settings.make_store()
    assert again.get("a" * 32) is None, "an engine never waits for a disk"
    again.prefetch({"a" * 32: 3})
    eventually(lambda: again.get("a" * 32) is not None)
    found = again.get("a" * 32)
    again.close()

    assert found is not None
    assert found.tokens == (1, 2, 3)


def test_an_accelerator_selects_blocks() -> None:
    cpu, gpu = (EngineChunkSettings.read({}, device=kind) for kind in ("cpu", "cuda"))
    assert (cpu.granularity, type(cpu.backend)) == (1, TiledAttention)
    assert (gpu.granularity, type(gpu.backend)) == (16, VarlenAttention)
