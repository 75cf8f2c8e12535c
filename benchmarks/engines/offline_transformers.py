"""A random model in transformers with chunk reuse, asked like an engine of its own.

It has `ChunkReuse`, as the embedded engine, and neither its scheduler nor a prefix cache.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from ragboost.chunk_cache.core.reuse import ChunkReuse, Prefill
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore
from tests.engines.offline import OfflineEngine
from tests.engines.random_model import make_model


class ReuseTransformers(OfflineEngine):
    """Transformers with chunk reuse; generates one token."""

    def __init__(
        self, shape: dict[str, Any], dtype: torch.dtype, *, settings: dict[str, Any]
    ) -> None:
        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            self.reference = make_model(Path(folder), shape, dtype=dtype)
        self._reuse = ChunkReuse(ModelAdapter(self.reference), TieredStore(**settings))

    def run(
        self, tokens: list[int], positions: Any = None, *, max_tokens: int = 1, **options: Any
    ) -> Prefill:
        if positions is None:
            return self._reuse.prefill([], [], tokens)
        chunks = [tokens[start:end] for start, end in positions]
        system, question = tokens[: positions[0][0]], tokens[positions[-1][1] :]
        return self._reuse.prefill(system, chunks, question, keep=True, **options)

    def report(self, output: Prefill) -> dict[str, Any]:
        return output.counts._asdict()

    def answer(self, output: Prefill) -> list[int]:
        return [int(output.logits.argmax())]

    def logprobs(self, tokens: list[int], positions: Any = None, **options: Any) -> torch.Tensor:
        return torch.log_softmax(self.run(tokens, positions, **options).logits.float(), -1)

    def flush(self) -> None:
        """Do nothing: there is no prefix cache."""

    def clock(self) -> float:
        return time.process_time()

    def stop(self) -> None: ...
