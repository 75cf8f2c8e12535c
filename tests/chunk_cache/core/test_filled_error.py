"""The check at the start passes where filling works, and fails where it does not."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ragboost.chunk_cache.core.fill import filled_error
from ragboost.chunk_cache.core.self_test import _filled_error
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.store.chunk import ChunkKV
from tests.chunk_cache.families import build_adapter
from tests.chunk_cache.prompts import exact_prefix

TOKENS = [3 + 7 * number % 90 for number in range(64)]


@pytest.fixture(scope="module")
def adapter() -> ModelAdapter:
    return build_adapter("qwen3-qk-norm")


def test_kv_that_is_filled_equals_what_the_engine_computes(adapter: ModelAdapter) -> None:
    assert filled_error(adapter, TOKENS, exact_prefix(adapter, TOKENS), backend=None) < 1e-5


def test_kv_that_is_damaged_on_the_way_is_noticed(
    adapter: ModelAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halved(kv: ChunkKV, device: torch.device) -> ChunkKV:
        layers = tuple((keys, values / 2) for keys, values in kv.layers)
        return ChunkKV(kv.tokens, kv.base, layers, kv.regime, kv.length)

    computed = exact_prefix(adapter, TOKENS)
    monkeypatch.setattr(ChunkKV, "to", halved)

    assert filled_error(adapter, TOKENS, computed, backend=None) > 0.01


@pytest.mark.parametrize("value", [None, math.nan, 0.0])
def test_an_attention_backend_that_fails_or_differs_on_a_device_is_replaced(
    adapter: ModelAdapter, value: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    class Kernel:
        def supports(self, inputs: AttentionInputs) -> bool:
            return True

        def attend(self, inputs: AttentionInputs) -> torch.Tensor:
            if value is None:
                raise RuntimeError("no kernel for this device")
            return torch.full_like(inputs.query, value)

    filler: Any = SimpleNamespace(model=adapter, backend=Kernel())

    assert _filled_error(filler, TOKENS, exact_prefix(adapter, TOKENS)) < 1e-5
    assert isinstance(filler.backend, TiledAttention)
    assert "backend of chunk reuse is replaced" in caplog.text
