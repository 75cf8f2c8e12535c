"""Random models and prompts for chunk reuse inside engines. Runs in the engines' environments."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from ragboost.chunk_cache.selection import DEFAULT_POLICY

VOCABULARY = 4096
POLICIES = (DEFAULT_POLICY, "gradual", "a3", "fusionrag", "cacheblend", "epic")
RATIOS = (0.0, 0.05, 0.15, 0.3, 1.0)
TIMED = (DEFAULT_POLICY, "gradual", "a3", "fusionrag", "epic")
CHUNK = 256
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.08,
}
DEEP = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


def make_model(folder: Path, shape: dict[str, Any], *, dtype: torch.dtype) -> LlamaForCausalLM:
    """Save a random Llama whose attention is peaked enough that stale KV changes the output."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=16_384,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=None,
        pad_token_id=0,
        **shape,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.q_proj.weight.data *= 3
        layer.self_attn.k_proj.weight.data *= 3
    model = model.to(dtype)
    model.config.dtype = str(dtype).removeprefix("torch.")
    model.save_pretrained(folder)
    return model.eval()


class Prompts:
    """Random prompts of a system prompt, chunks and a question, from a seed."""

    def __init__(self, *, system: int, chunks: int, size: int, question: int) -> None:
        self._random = random.Random(0)
        self._question_size = question
        self.system = self.tokens(system)
        self.chunks = [self.tokens(size) for _ in range(chunks)]
        self.question = self.tokens(question)

    def tokens(self, count: int) -> list[int]:
        """Return new random tokens."""
        return [self._random.randrange(10, VOCABULARY) for _ in range(count)]

    def shuffled(self, count: int) -> list[int]:
        """Return the numbers of some chunks."""
        return self._random.sample(range(len(self.chunks)), count)

    def prompt(
        self, order: Sequence[int], *, question: Sequence[int] | None = None
    ) -> tuple[list[int], list[list[int]]]:
        """Return the tokens of a prompt and the positions of its chunks."""
        tokens, positions = list(self.system), []
        for number in order:
            chunk = self.chunks[number]
            positions.append([len(tokens), len(tokens) + len(chunk)])
            tokens.extend(chunk)
        return tokens + list(self.question if question is None else question), positions


def default_ratios(by_arm: Mapping[str, float]) -> dict[str, float]:
    """Return the speed-ups of the default policy by ratio, from those of all arms of `ttft`."""
    default = {ratio: by_arm[f"{DEFAULT_POLICY} {ratio}"] for ratio in ("0.05", "0.15", "0.3")}
    return {"0": by_arm["epic 0.0"], **default}
