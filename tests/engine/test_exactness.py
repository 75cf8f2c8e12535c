"""Prefix reuse is exact: the same logits with and without the cache, for several architectures."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from ragboost.engine.runtime.model_runner import ModelRunner
from ragboost.engine.runtime.prefix_store import PrefixStore
from ragboost.engine.runtime.request import EngineRequest, PromptTokens, SamplingParams
from ragboost.errors import ConfigError
from tests.kv_integrity import check_blocks

COMMON: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.15,  # attention that is far from uniform
}
GQA = {**COMMON, "num_key_value_heads": 2}
MODELS = {
    "llama": (LlamaForCausalLM, LlamaConfig(**COMMON, num_key_value_heads=4)),
    "llama-gqa": (LlamaForCausalLM, LlamaConfig(**GQA)),
    "llama-mqa": (LlamaForCausalLM, LlamaConfig(**COMMON, num_key_value_heads=1)),
    "llama3-rope": (
        LlamaForCausalLM,
        LlamaConfig(
            **GQA,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
        ),
    ),
    "gpt-oss-sinks-window": (
        GptOssForCausalLM,
        GptOssConfig(
            **GQA,
            head_dim=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            eos_token_id=0,
            pad_token_id=0,
            sliding_window=24,
            attn_implementation="eager",
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        ),
    ),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**GQA)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**GQA, head_dim=24)),
    "mistral-window": (MistralForCausalLM, MistralConfig(**GQA, sliding_window=24)),
    "gemma2-softcap-window": (
        Gemma2ForCausalLM,
        Gemma2Config(
            **GQA, head_dim=16, sliding_window=24, attn_implementation="eager", pad_token_id=0
        ),
    ),
}
TOLERANCE = 2e-5  # fp32, logits of size 1 to 30


def build(name: str) -> tuple[Any, ModelRunner]:
    """The model with stock attention, and a runner over an equal one."""
    kind, config = MODELS[name]
    torch.manual_seed(7)
    plain = kind(config).eval()
    served = kind(copy.deepcopy(config))  # the runner sets its attention in the config
    served.load_state_dict(plain.state_dict())
    return plain, ModelRunner(served)


def plain_logits(model: Any, ids: list[int]) -> Tensor:
    """Logits of the last token, by one ordinary forward without any cache."""
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
    return logits


def random_ids(count: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, 512, (count,), generator=generator).tolist()
    return ids


def new_request(ids: list[int]) -> EngineRequest:
    return EngineRequest(
        PromptTokens(ids), SamplingParams(temperature=0), emit=lambda _output: None
    )


def compute(
    runner: ModelRunner, store: PrefixStore, request: EngineRequest, *, chunk: int
) -> Tensor:
    """Prefill as the scheduler does: take what is cached, compute the rest in chunks, store it."""
    ids = request.token_ids
    request.kv = runner.new_kv(len(ids))
    store.load(request)
    logits = torch.empty(0)
    while request.num_computed < len(ids):
        start, end = request.num_computed, min(request.num_computed + chunk, len(ids))
        logits = runner.forward(ids[start:end], request.kv, start=start)
        request.num_computed = end
        store.save(request)
    return logits[0]


@pytest.mark.parametrize("name", MODELS)
def test_logits_from_a_cached_prefix_equal_the_plain_forward(name: str) -> None:
    plain, runner = build(name)
    store = PrefixStore(runner.layout, capacity_tokens=512, block_size=8)
    shared, tails = random_ids(83, 1), [random_ids(20, 2), random_ids(1, 3), random_ids(37, 4)]
    for cached, tail in zip((0, 80, 80), tails, strict=True):
        request = new_request(shared + tail)
        logits = compute(runner, store, request, chunk=32)
        expected = plain_logits(plain, shared + tail)
        assert request.cached_tokens == cached
        assert expected.abs().max() > 0.5, "logits too small to compare"
        assert (logits - expected).abs().max() < TOLERANCE
        store.release(request)
        check_blocks(store.cache)


@pytest.mark.parametrize("name", MODELS)
def test_requests_whose_steps_alternate_do_not_see_each_other(name: str) -> None:
    plain, runner = build(name)
    prompts = [random_ids(40, 5), random_ids(9, 6), random_ids(61, 7)]
    kvs = [runner.new_kv(len(ids)) for ids in prompts]
    starts = [39, 4, 30]  # a decode row, a prefill from the middle, another
    for ids, kv, start in zip(prompts, kvs, starts, strict=True):
        none = runner.forward(ids[:start], kv, start=0, num_logits=0)
        assert none.shape == (0, 512)
    for ids, kv, start in zip(prompts, kvs, starts, strict=True):
        logits = runner.forward(ids[start:], kv, start=start)
        assert (logits[0] - plain_logits(plain, ids)).abs().max() < TOLERANCE


def test_a_fully_cached_prompt_still_computes_its_last_token() -> None:
    plain, runner = build("llama-gqa")
    store = PrefixStore(runner.layout, capacity_tokens=512, block_size=8)
    ids = random_ids(64, 8)
    for cached in (0, 56):
        request = new_request(ids)
        logits = compute(runner, store, request, chunk=16)
        assert request.cached_tokens == cached
        assert (logits - plain_logits(plain, ids)).abs().max() < TOLERANCE
        store.release(request)


def test_reuse_stays_exact_when_blocks_are_evicted_and_stored_again() -> None:
    plain, runner = build("llama-gqa")
    store = PrefixStore(runner.layout, capacity_tokens=96, block_size=8)
    prompts = [random_ids(30, seed) + random_ids(17, seed + 10) for seed in range(4)]
    for turn, which in enumerate((0, 1, 0, 2, 3, 2, 1, 0, 0, 3, 1, 1)):
        ids = prompts[which][: 47 - turn]
        request = new_request(ids)
        logits = compute(runner, store, request, chunk=16)
        assert (logits - plain_logits(plain, ids)).abs().max() < TOLERANCE
        store.release(request)
        check_blocks(store.cache)
    assert store.hit_tokens > 0
    assert len(store.cache) == 12


def test_a_sequence_that_is_not_exact_never_reaches_the_prefix_cache() -> None:
    _, runner = build("llama-gqa")
    store = PrefixStore(runner.layout, capacity_tokens=96, block_size=8)
    request = new_request(random_ids(30, 1))
    request.exact_until = 0
    compute(runner, store, request, chunk=16)
    assert len(store.cache) == 0


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (
            lambda: MambaForCausalLM(
                MambaConfig(
                    vocab_size=64, hidden_size=32, num_hidden_layers=1, state_size=4, eos_token_id=0
                )
            ),
            "layers of type linear_attention",
        ),
        (
            lambda: LlamaForCausalLM(LlamaConfig(**GQA, layer_types=["chunked_attention"] * 3)),
            "layers of type chunked_attention",
        ),
    ],
)
def test_model_that_cannot_be_served_exactly_is_refused(model: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot be served by the embedded engine.*{reason}"):
        ModelRunner(model())


def test_reserved_ids_that_compute_nothing_sensible_refuse_no_model() -> None:
    model = LlamaForCausalLM(LlamaConfig(**{**GQA, "vocab_size": 20_000})).to(torch.bfloat16)
    with torch.inference_mode():
        model.model.embed_tokens.weight[:17] = torch.nan  # as many as SmolLM2 reserves

    ModelRunner(model)
