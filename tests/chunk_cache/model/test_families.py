"""Reuse computes the same as plain forwards, for every family of models."""

import pytest
import torch
from transformers.cache_utils import DynamicCache

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.core.self_test import self_test
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.chunk_cache.model.pace import at_once
from ragboost.chunk_cache.model.plan import ForwardPlan
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import UnsupportedModelError
from tests.chunk_cache.families import FAMILIES, build_adapter, build_model, flat, make_prompt
from tests.chunk_cache.random_policy import Random
from tests.chunk_cache.reference import full_reuse, ordinary, token_by_token

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning")


@pytest.mark.parametrize("family", FAMILIES)
def test_ordinary_calls_are_bit_identical_with_our_attention_installed(family: str) -> None:
    model = build_model(family)
    system, chunks, question = make_prompt()
    tokens = [*system, *flat(chunks), *question]
    before = ordinary(model, tokens)

    ModelAdapter(model)

    assert torch.equal(ordinary(model, tokens), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_computing_every_token_is_bit_identical_to_the_ordinary_forward(family: str) -> None:
    adapter = build_adapter(family)
    system, chunks, question = make_prompt()
    tokens = [*system, *flat(chunks), *question]
    want = ordinary(adapter.model, tokens)
    reuse = ChunkReuse(adapter, TieredStore(), backend=None)

    cache = adapter.empty_cache(len(tokens))
    rows = torch.arange(len(tokens))
    assert torch.equal(_logits(adapter, tokens, cache, rows), want)

    result = reuse.prefill(system, chunks, question, ratio=1.0)  # nothing is stored yet
    assert torch.equal(result.logits, want)
    assert result.counts.computed == len(tokens) == result.num_publishable


@pytest.mark.parametrize("backend", [None, TiledAttention()])
@pytest.mark.parametrize("family", FAMILIES)
def test_ratio_1_over_a_stored_system_prompt_equals_the_ordinary_forward(
    family: str, backend: TiledAttention | None
) -> None:
    adapter = build_adapter(family)
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, TieredStore(), backend=backend)
    reuse.precompute(system, chunks)

    result = reuse.prefill(system, chunks, question, ratio=1.0)

    want = ordinary(adapter.model, [*system, *flat(chunks), *question])
    assert (result.logits - want).abs().max() <= 1e-6 * max(1.0, float(want.abs().max()))
    assert result.counts.exact == len(system) + len(chunks[0])
    assert result.counts.recomputed == sum(map(len, chunks[1:]))


@pytest.mark.parametrize("family", FAMILIES)
def test_ratio_0_equals_a_block_mask_forward(family: str) -> None:
    adapter = build_adapter(family)
    system, chunks, question = make_prompt()
    reuse = ChunkReuse(adapter, TieredStore(), backend=None)
    reuse.precompute(system, chunks)

    result = reuse.prefill(system, chunks, question, ratio=0.0)

    want = full_reuse(adapter.model, system, chunks, question)
    exact = ordinary(adapter.model, [*system, *flat(chunks), *question])
    assert (result.logits - want).abs().max() <= 1e-6 * max(1.0, float(want.abs().max()))
    assert (want - exact).abs().max() > 1e-4, "the model does not look across chunks"


@pytest.mark.parametrize("family", FAMILIES)
def test_partial_recompute_equals_decoding_token_by_token(family: str) -> None:
    adapter = build_adapter(family)
    system, chunks, question = make_prompt(chunks=3, length=14)
    reuse = ChunkReuse(adapter, TieredStore())
    reuse.precompute(system, chunks[:-1])  # the last chunk is missing
    assembly = reuse.assemble(system, chunks, question)
    rows = assembly.rows_to_compute(at_once(Random().select(adapter, assembly, ratio=0.4)))
    layers = [(layer.keys.clone(), layer.values.clone()) for layer in assembly.cache.layers]

    result = reuse.prefill(system, chunks, question, policy=Random(), ratio=0.4)

    want, logits = token_by_token(adapter.model, layers, assembly.tokens, rows.tolist())
    assert (result.logits - logits).abs().max() <= 2e-6 * max(1.0, float(logits.abs().max()))
    for layer, (keys, values) in zip(result.cache.layers, want, strict=True):
        torch.testing.assert_close(layer.keys, keys, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(layer.values, values, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_generate_from_an_injected_cache_equals_generate_from_text(family: str) -> None:
    adapter = build_adapter(family)
    system, chunks, question = make_prompt()
    ids = torch.tensor([[*system, *flat(chunks), *question]])
    options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    mask = torch.ones_like(ids)
    want = adapter.model.generate(
        ids, attention_mask=mask, past_key_values=DynamicCache(), **options
    )
    reuse = ChunkReuse(adapter, TieredStore())
    reuse.precompute(system, chunks)

    result = reuse.prefill(system, chunks, question, ratio=1.0)
    first = torch.cat((ids, result.logits.argmax().view(1, 1)), 1)
    options |= {"max_new_tokens": 7, "min_new_tokens": 7}
    got = adapter.model.generate(
        first, attention_mask=torch.ones_like(first), past_key_values=result.cache, **options
    )

    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_test_passes(family: str) -> None:
    result = self_test(build_adapter(family))

    assert result.full_error < 1e-6


@pytest.mark.parametrize("family", FAMILIES)
def test_the_self_test_passes_in_bfloat16(family: str) -> None:
    self_test(ModelAdapter(build_model(family).to(torch.bfloat16)))


def test_a_deep_model_may_round_as_much_as_its_own_values_do_and_no_more() -> None:
    adapter = ModelAdapter(
        build_model("glm4-partial-interleaved", num_hidden_layers=24).to(torch.bfloat16)
    )
    assert self_test(adapter).moved_error > 0.05

    adapter.layouts = ("half",) * len(adapter.layouts)  # not this model's
    with pytest.raises(UnsupportedModelError, match="moved_error is"):
        self_test(adapter)


def _logits(
    adapter: ModelAdapter, tokens: list[int], cache: object, rows: torch.Tensor
) -> torch.Tensor:
    logits = adapter.forward(tokens, cache, plan=ForwardPlan(rows))  # type: ignore[arg-type]
    assert logits is not None
    return logits
