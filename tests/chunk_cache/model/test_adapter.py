"""Models that reuse cannot handle are refused with a reason; broken reuse is found at start-up."""

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.self_test import self_test
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.errors import UnsupportedModelError
from tests.chunk_cache.families import build_adapter, build_model, flat, make_prompt
from tests.chunk_cache.reference import ordinary


def tiny(kind: str, **options: Any) -> Any:
    config = AutoConfig.for_model(
        kind,
        **{
            "vocab_size": 96,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **options,
        },
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gpt2", {}, "0 rotary embeddings"),
        ("bloom", {}, "0 rotary embeddings"),
        ("llama4_text", {"num_local_experts": 2}, "layers of type chunked_attention"),
        ("stablelm", {}, "does not pass keyword arguments"),
    ],
)
def test_a_model_whose_kv_cannot_be_moved_is_refused_with_the_reason(
    kind: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=reason):
        ModelAdapter(tiny(kind, **options))


def test_attention_that_was_replaced_is_noticed_and_can_be_installed_again() -> None:
    adapter = build_adapter()
    adapter.model.set_attn_implementation("sdpa")
    with pytest.raises(UnsupportedModelError, match="install was not called again"):
        self_test(adapter)
    adapter.install()
    assert self_test(adapter).full_error < 1e-6


@pytest.mark.parametrize("backend", [None, TiledAttention()])
def test_the_embedded_engine_and_reuse_share_a_model(backend: TiledAttention | None) -> None:
    model = build_model("qwen3-qk-norm")
    system, chunks, question = make_prompt()
    tokens = [*system, *flat(chunks), *question]
    want = ordinary(model, tokens)
    adapter = ModelAdapter(model)

    runner = ModelRunner(model)

    reuse = ChunkReuse(adapter, TieredStore(), backend=backend)
    reuse.precompute(system, chunks)
    whole = reuse.prefill(system, chunks, question, ratio=1.0)
    torch.testing.assert_close(whole.logits, want, atol=1e-5, rtol=1e-5)
    kv = runner.new_kv(len(tokens))
    own = runner.forward(tokens, kv, start=0)
    torch.testing.assert_close(own[0], want, atol=1e-5, rtol=1e-5)


def test_keys_that_do_not_move_as_rope_says_are_refused() -> None:
    model = tiny("llama")
    rotary = model.model.rotary_emb
    with torch.no_grad():
        rotary.inv_freq.mul_(0.9)
    ModelAdapter(model)  # consistent speeds, whatever they are, are fine

    model = tiny("llama")
    original = model.model.rotary_emb.forward
    model.model.rotary_emb.forward = lambda x, position_ids: original(x, position_ids**2)
    with pytest.raises(UnsupportedModelError, match="unknown position encoding"):
        ModelAdapter(model)


def test_the_self_test_finds_attention_that_sees_the_future(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = build_adapter()
    assert self_test(adapter).full_error < 1e-6

    exact = TiledAttention.attend

    def bottom_right(self: TiledAttention, inputs: Any) -> torch.Tensor:
        """The mask of compacted rows: the last row is aligned with the last key."""
        rows = torch.arange(len(inputs.positions)) + inputs.num_keys - len(inputs.positions)
        return exact(self, type(inputs)(*inputs_of(inputs, positions=rows)))

    def inputs_of(inputs: Any, *, positions: torch.Tensor) -> list[Any]:
        values = {name: getattr(inputs, name) for name in type(inputs).__slots__}
        return list({**values, "positions": positions}.values())

    monkeypatch.setattr(TiledAttention, "attend", bottom_right)
    self_test(adapter)  # contiguous rows at the end hide it

    def shifted(self: TiledAttention, inputs: Any) -> torch.Tensor:
        rows = (inputs.positions + 1).clamp_max(inputs.num_keys - 1)
        return exact(self, type(inputs)(*inputs_of(inputs, positions=rows)))

    monkeypatch.setattr(TiledAttention, "attend", shifted)
    with pytest.raises(UnsupportedModelError, match="reuse stays off for this model"):
        self_test(adapter)
