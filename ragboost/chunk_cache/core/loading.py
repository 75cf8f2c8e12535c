"""Load a model from a directory."""

from pathlib import Path
from typing import Any, NamedTuple

import torch

from ragboost.chunk_cache.core.self_test import SelfTest, self_test
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.errors import ConfigError, import_extra


class Loaded(NamedTuple):
    adapter: ModelAdapter  # the model
    tokenizer: Any | None  # None if the directory has none
    checked: SelfTest  # result of the self-test


def check_device(device: str, *, option: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"{option} must be cpu or cuda, got {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"{option} {device}: torch finds no GPU here")


def load_tokenizer(model: Path) -> Any | None:
    transformers = import_extra("transformers", extra="engine")
    has_tokenizer = any(model.glob("tokenizer*")) or any(model.glob("vocab*"))
    return transformers.AutoTokenizer.from_pretrained(model) if has_tokenizer else None


def load(model: Path, *, device: str) -> Loaded:
    """Load a causal LM and run the self-test of chunk reuse."""
    check_device(device, option="--device")
    transformers = import_extra("transformers", extra="engine")
    causal_lm = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype="float32" if device == "cpu" else "auto"
    ).to(device)
    adapter = ModelAdapter(causal_lm)
    return Loaded(adapter, load_tokenizer(model), self_test(adapter))
