"""A random model in an offline vLLM with chunk reuse. Runs in vLLM's environment."""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from transformers import LlamaForCausalLM
from vllm import LLM, SamplingParams

from tests.engines.offline import OfflineEngine
from tests.engines.random_model import make_model

WORKER = "ragboost.chunk_cache.vllm.worker.ChunkWorker"
CONNECTOR = "ragboost.chunk_cache.vllm.connector"


class ReuseLLM(OfflineEngine):
    """vLLM with chunk reuse, for a random model of some sizes, or a trained one in a folder.

    `blocks` of 32 tokens are in the prefix cache; `settings` are the connector's extra config, and
    `options` arguments of `vllm.LLM`.
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
        # Workers in other processes compute while this one waits.
        several = options.get("tensor_parallel_size", 1) > 1
        self._clock = time.perf_counter if several else time.process_time
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
                max_logprobs=-1,  # all of them
                disable_log_stats=True,
                worker_cls=WORKER,
                kv_transfer_config={
                    "kv_connector": "ChunkConnector",
                    "kv_connector_module_path": CONNECTOR,
                    "kv_role": "kv_both",
                    "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": {"fill": "always", **(settings or {})},
                },
                **options,
            )

    def sampling(
        self,
        positions: Any = None,
        *,
        max_tokens: int = 1,
        logprobs: int | None = None,
        **options: Any,
    ) -> SamplingParams:
        """Return parameters of a request."""
        extra = None
        if positions is not None:
            entry = {"version": 1, "chunks": positions, **options}
            extra = {"kv_transfer_params": {"ragboost": entry}}
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=0,
            logprobs=logprobs,
            ignore_eos=True,
            detokenize=False,
            extra_args=extra,
        )

    def run(self, tokens: list[int], positions: Any = None, **options: Any) -> Any:
        sampling = self.sampling(positions, **options)
        prompt = {"prompt_token_ids": tokens}
        return self.llm.generate([prompt], sampling, use_tqdm=False)[0]

    def logprobs(self, tokens: list[int], positions: Any = None, **options: Any) -> torch.Tensor:
        output = self.run(tokens, positions, logprobs=-1, **options)
        found = torch.full((self.vocabulary,), float("nan"))
        for token, entry in output.outputs[0].logprobs[0].items():
            found[token] = entry.logprob
        return found

    def report(self, output: Any) -> dict[str, Any]:
        report: dict[str, Any] = output.kv_transfer_params["ragboost"]
        return report

    def answer(self, output: Any) -> list[int]:
        return list(output.outputs[0].token_ids)

    def flush(self) -> None:
        self.llm.reset_prefix_cache()

    def clock(self) -> float:
        """Return CPU seconds, or wall time with several workers."""
        return self._clock()

    def stop(self) -> None: ...
