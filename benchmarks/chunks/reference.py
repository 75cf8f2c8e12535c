"""The reference model of the benchmarks of quality, its prompts, and means over their seeds.

The model is the project's own, trained on `research.tasks` by scripts/train_reference_model.py. The
splits share no prompts with the training stream or with each other.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from ragboost.chunk_cache.core.reuse import ChunkReuse
from ragboost.chunk_cache.eval.metrics import estimate
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.store.tiered import TieredStore

MODEL = Path(__file__).parents[1] / "models" / "reference"
SPLITS = {"development": (101, 102, 103), "test": (201, 202, 203)}


def load_adapter(model: Path = MODEL) -> ModelAdapter:
    return ModelAdapter(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32))


def load_reuse(model: Path = MODEL) -> ChunkReuse:
    """Return a model with an empty store."""
    return ChunkReuse(load_adapter(model), TieredStore(host_bytes=2 << 30))


def mean_and_error(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean over seeds and its standard error, rounded; None where there is none."""
    found = estimate(values)
    return rounded(found.mean), rounded(found.error)


def rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)
