"""Rows that are dropped between layers keep the KV they had; the others do not notice how."""

import pytest
import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import UnsupportedModelError
from research.craft.reuse import CraftReuse
from research.craft.row_hooks import RowDropper, install_row_hooks
from tests.chunk_cache.families import FAMILIES, build_model

TOKENS = [(7 * i + 5) % 90 for i in range(24)]
ROWS = torch.tensor([4, 5, 9, 10, 11, 15, 20, 21, 22, 23])
KEPT = torch.tensor([0, 3, 4, 6, 7, 8, 9])
DROPPED = torch.tensor([5, 9, 15])
LAYER = 1
KINDS = [
    family
    for family in FAMILIES
    if family.startswith(("qwen3-moe", "gemma3", "gpt", "glm4", "phi3"))
]
"""Layers that pass their inputs in different ways."""


def stale(adapter: ModelAdapter) -> RequestCache:
    """KV of other tokens in all places."""
    cache = adapter.empty_cache(len(TOKENS))
    other = [(token + 11) % 90 for token in TOKENS]
    adapter.forward(other, cache, plan=ForwardPlan(torch.arange(len(TOKENS))))
    return cache


@pytest.mark.parametrize("family", KINDS)
def test_dropping_rows_equals_putting_their_old_kv_back_in_later_layers(family: str) -> None:
    adapter = ModelAdapter(build_model(family))
    assert install_row_hooks(adapter.model, num_layers=adapter.num_layers)
    assert install_row_hooks(adapter.model, num_layers=adapter.num_layers), "twice is once"
    old, cache, reference = stale(adapter), stale(adapter), stale(adapter)
    tokens = [TOKENS[i] for i in ROWS]

    def drop(layer: int, inputs: AttentionInputs) -> torch.Tensor | None:
        assert len(inputs.positions) == inputs.query.shape[2] == (10 if layer <= LAYER else 7)
        return KEPT if layer == LAYER else None

    def put_back(layer: int, inputs: AttentionInputs) -> None:
        if layer > LAYER:
            inputs.key[:, :, DROPPED] = old.layers[layer].keys[:, :, DROPPED]
            inputs.value[:, :, DROPPED] = old.layers[layer].values[:, :, DROPPED]

    backend = TiledAttention()
    got = adapter.forward(
        tokens, cache, plan=ForwardPlan(ROWS, backend=backend, observe=RowDropper(drop))
    )
    want = adapter.forward(
        tokens, reference, plan=ForwardPlan(ROWS, backend=backend, observe=put_back)
    )

    assert got is not None
    assert want is not None
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)
    for layer, same in zip(cache.layers, reference.layers, strict=True):
        torch.testing.assert_close(layer.keys, same.keys, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(layer.values, same.values, atol=2e-6, rtol=1e-5)
    assert torch.equal(cache.layers[2].keys[:, :, DROPPED], old.layers[2].keys[:, :, DROPPED])


def test_ordinary_calls_stay_bit_identical() -> None:
    model = build_model("llama")
    tokens = torch.tensor([TOKENS])
    with torch.no_grad():
        before = model(tokens).logits
        adapter = ModelAdapter(model)
        assert install_row_hooks(model, num_layers=adapter.num_layers)
        assert torch.equal(model(tokens).logits, before)


def test_a_model_without_a_list_of_layers_cannot_drop_rows() -> None:
    assert not install_row_hooks(build_model("llama"), num_layers=7)
    adapter = ModelAdapter(build_model("llama"))
    adapter.num_layers = 7
    with pytest.raises(UnsupportedModelError, match="no list of 7 decoder layers"):
        CraftReuse(ChunkReuse(adapter, TieredStore()))
    assert CraftReuse(ChunkReuse(adapter, TieredStore()), early_stop=False)
