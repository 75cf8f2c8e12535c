"""Model directories that are damaged, incomplete or bring code are refused in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from ragboost.chunk_cache.core.loading import load, load_tokenizer
from ragboost.config import EngineSettings
from ragboost.engine.builtin import build_tokenizer
from ragboost.engine.loading import load_model
from ragboost.errors import ConfigError
from tests.chunk_cache.families import build_model


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    build_model("llama").save_pretrained(tmp_path / "model")
    build_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def _configure(directory: Path, **fields: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _lose_a_layer(directory: Path) -> None:
    path = directory / "model.safetensors"
    kept = {name: part for name, part in load_file(path).items() if "layers.1" not in name}
    save_file(kept, path, metadata={"format": "pt"})


def _cut_off(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def _bring_code(directory: Path) -> None:
    classes = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    _configure(directory, model_type="unheard-of", auto_map=classes)
    (directory / "code.py").write_text("raise SystemExit('the code of the directory was run')")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_lose_a_layer, r"no weights for model\.layers\.1\.\S+ \(\d+ tensors are missing\)"),
        (_cut_off, "incomplete metadata"),
        (_bring_code, "custom code"),
        (lambda directory: _configure(directory, dtype="float17"), "float17"),
        (lambda directory: _configure(directory, num_attention_heads=0), "zero"),
        (lambda directory: (directory / "config.json").write_text("[]"), ""),
    ],
)
def test_a_damaged_directory_is_one_sentence(
    directory: Path,
    damage: Callable[[Path], None],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("the user was asked"))
    damage(directory)
    with pytest.raises(ConfigError, match=f"--model: cannot load {directory}: .*{reason}"):
        load(directory, device="cpu")
    with pytest.raises(ConfigError, match=rf"engine\.model: cannot load {directory}: .*{reason}"):
        load_model(EngineSettings(model=directory))


def test_a_damaged_tokenizer_is_one_sentence(directory: Path) -> None:
    (directory / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match=f"--model: cannot load {directory}"):
        load_tokenizer(directory)
    with pytest.raises(ConfigError, match=rf"engine\.model: cannot load {directory}"):
        load_model(EngineSettings(model=directory))
