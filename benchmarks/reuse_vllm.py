"""A random model in an offline vLLM with chunk reuse. Runs in vLLM's environment."""

import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

VOCABULARY = 4096
WORKER = "ragboost.engine_chunks.vllm.worker.ChunkWorker"
CONNECTOR = "ragboost.engine_chunks.vllm.connector"
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


class ReuseLLM:
    """vLLM with chunk reuse.

    Args:
        model: sizes of a random model, or the folder of a trained one.
        dtype: its dtype.
        blocks: blocks of 32 tokens in the prefix cache.
        settings: `kv_connector_extra_config`.
        options: arguments of `vllm.LLM`.

    Attributes:
        reference: the same model in transformers.
        llm: vLLM.
    """

    def __init__(
        self,
        model: dict[str, Any] | Path,
        dtype: torch.dtype = torch.float32,
        *,
        blocks: int = 300,
        settings: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(model, Path):
                folder = str(model)
                self.reference = LlamaForCausalLM.from_pretrained(model, dtype=dtype).eval()
            else:
                self.reference = make_model(Path(folder), model, dtype=dtype)
            self.llm = LLM(
                folder,
                dtype=str(dtype).removeprefix("torch."),
                skip_tokenizer_init=True,
                gpu_memory_utilization=0.2,  # of the host: vLLM refuses to start with less free
                enforce_eager=True,
                block_size=32,
                num_gpu_blocks_override=blocks,
                max_logprobs=VOCABULARY if isinstance(model, dict) else 20,
                disable_log_stats=True,
                worker_cls=WORKER,
                kv_transfer_config={
                    "kv_connector": "ChunkConnector",
                    "kv_connector_module_path": CONNECTOR,
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": settings or {},
                },
                **options,
            )

    def sampling(
        self,
        positions: Any = None,
        *,
        max_tokens: int = 1,
        logprobs: int | None = None,
        **told: Any,
    ) -> SamplingParams:
        """Return parameters of a request; `told` are the fields of `ragboost`."""
        extra = None
        if positions is not None:
            entry = {"version": 1, "chunks": positions, **told}
            extra = {"kv_transfer_params": {"ragboost": entry}}
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            logprobs=logprobs,
            ignore_eos=True,
            detokenize=False,
            extra_args=extra,
        )

    def run(self, tokens: list[int], positions: Any = None, **told: Any) -> Any:
        """Run one request and return vLLM's output."""
        sampling = self.sampling(positions, **told)
        prompt = {"prompt_token_ids": tokens}
        return self.llm.generate([prompt], sampling, use_tqdm=False)[0]

    def logprobs(self, tokens: list[int], positions: Any = None, **told: Any) -> torch.Tensor:
        """Return the log-probabilities of the next token, (vocabulary,)."""
        output = self.run(tokens, positions, logprobs=VOCABULARY, **told)
        found = torch.full((VOCABULARY,), float("nan"))
        for token, entry in output.outputs[0].logprobs[0].items():
            found[token] = entry.logprob
        return found

    @torch.no_grad()
    def exact(self, tokens: list[int]) -> torch.Tensor:
        """Return the log-probabilities that transformers computes for the next token."""
        logits = self.reference(torch.tensor([tokens])).logits[0, -1]
        return torch.log_softmax(logits.float(), -1)

    def seconds(self, tokens: list[int], positions: Any = None, **told: Any) -> float:
        """Return the CPU seconds to the first token, with an empty prefix cache."""
        self.llm.reset_prefix_cache()
        begin = time.process_time()
        self.run(tokens, positions, **told)
        return time.process_time() - begin

    def learn(self, prompts: Prompts) -> None:
        """Let the store take every chunk out of a request that has it alone."""
        for number in range(len(prompts.chunks)):
            self.run(*prompts.prompt([number]))
