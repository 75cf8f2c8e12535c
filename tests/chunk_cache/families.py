"""Tiny models with random weights, one per kind of attention that chunk reuse supports."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ragboost.chunk_cache.model.adapter import ModelAdapter

_COMMON: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def _rope(**parameters: Any) -> dict[str, Any]:
    return {"model_type": "llama", "rope_parameters": {"rope_theta": 10_000.0, **parameters}}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-linear": _rope(rope_type="linear", factor=4.0),
    "llama-llama3": _rope(
        rope_type="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=64,
    ),
    "llama-yarn": _rope(rope_type="yarn", factor=8.0, original_max_position_embeddings=64),
    "mistral-window": {"model_type": "mistral", "sliding_window": 16},
    "qwen2-bias": {"model_type": "qwen2"},
    "qwen3-qk-norm": {"model_type": "qwen3"},
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
    "phi3-fused-qkv": {"model_type": "phi3"},
    "olmo2": {"model_type": "olmo2"},
    "gemma2-softcap": {"model_type": "gemma2", "sliding_window": 16},
    "gemma3-local-theta": {"model_type": "gemma3_text", "sliding_window": 16},
    "gpt-oss-sinks": {
        "model_type": "gpt_oss",
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    },
    "glm4-partial-interleaved": {"model_type": "glm4"},
    "cohere-interleaved": {"model_type": "cohere"},
    "cohere2-nope-global": {
        "model_type": "cohere2",
        "num_hidden_layers": 4,
        "sliding_window": 16,
    },
    "smollm3-nope": {"model_type": "smollm3", "num_hidden_layers": 4},
    "gpt-neox-partial": {"model_type": "gpt_neox"},
}


def build_model(family: str, **changes: Any) -> Any:
    """Return a model of a family, with fixed random weights; large queries and keys make attention
    far from uniform."""
    options = dict(FAMILIES[family])
    torch.manual_seed(0)
    config = AutoConfig.for_model(options.pop("model_type"), **{**_COMMON, **options, **changes})
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("q_proj", "k_proj", "v_proj", "qkv_proj")):
                parameter.mul_(6.0)
    return model


def build_adapter(family: str = "llama", **changes: Any) -> ModelAdapter:
    return ModelAdapter(build_model(family, **changes))


def make_prompt(
    *, system: int = 6, chunks: int = 4, length: int = 20, question: int = 7, seed: int = 0
) -> tuple[list[int], list[list[int]], list[int]]:
    """Return token ids of a system prompt, chunks and a question."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        ids: list[int] = torch.randint(3, 96, (count,), generator=generator).tolist()
        return ids

    return draw(system), [draw(length) for _ in range(chunks)], draw(question)


def flat(chunks: list[list[int]]) -> list[int]:
    return [token for chunk in chunks for token in chunk]
