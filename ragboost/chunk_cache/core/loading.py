"""Load a model from a directory: all of its weights, and none of its code."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from jinja2 import TemplateError

from ragboost.chunk_cache.core.self_test import SelfTest, self_test
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.errors import ConfigError, import_extra

TEMPLATE_ERRORS = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors of a chat template, which is a program that the model brings."""

_OPTION = "--model"
# Unless it is told not to, transformers asks on the terminal whether to run the directory's code.
_OF_THE_DIRECTORY: Mapping[str, Any] = MappingProxyType(
    {"local_files_only": True, "trust_remote_code": False}
)


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


def load_causal_lm(model: Path, *, dtype: Any, option: str = _OPTION) -> Any:
    """Raises `ConfigError`, which names the `option`, also if a part of the weights is missing,
    which transformers would draw at random."""
    transformers = import_extra("transformers", extra="engine")
    with _naming(model, option):
        causal_lm, found = transformers.AutoModelForCausalLM.from_pretrained(
            model, dtype=dtype, output_loading_info=True, **_OF_THE_DIRECTORY
        )
    if missing := sorted(found["missing_keys"]):
        raise ConfigError(
            f"{option}: cannot load {model}: it has no weights for {missing[0]} "
            f"({len(missing)} tensors are missing)"
        )
    return causal_lm


def load_tokenizer(model: Path, *, option: str = _OPTION) -> Any:
    transformers = import_extra("transformers", extra="engine")
    with _naming(model, option):
        return transformers.AutoTokenizer.from_pretrained(model, **_OF_THE_DIRECTORY)


def find_tokenizer(model: Path) -> Any | None:
    has_tokenizer = any(model.glob("tokenizer*")) or any(model.glob("vocab*"))
    return load_tokenizer(model) if has_tokenizer else None


@contextmanager
def _naming(model: Path, option: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged directory fails anywhere in transformers
        raise ConfigError(f"{option}: cannot load {model}: {error}") from error


def load(model: Path, *, device: str) -> Loaded:
    """Load a causal LM and run the self-test of chunk reuse."""
    check_device(device, option="--device")
    causal_lm = load_causal_lm(model, dtype="float32" if device == "cpu" else "auto").to(device)
    adapter = ModelAdapter(causal_lm)
    return Loaded(adapter, find_tokenizer(model), self_test(adapter))
