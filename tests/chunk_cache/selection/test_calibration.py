"""A calibration is read by every engine, for its model alone; anything else is a sentence."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ragboost.chunk_cache.core.settings import EngineChunkSettings
from ragboost.chunk_cache.selection.calibration import (
    MAX_BYTES,
    Calibration,
    calibrated_policies,
    shape_digest,
)
from ragboost.errors import ConfigError
from tests.chunk_cache.families import build_adapter

GOOD = {"version": 1, "shape": "a" * 32, "policy": "mean-layers", "ratio": 0.2}


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path, calibration = (
        tmp_path / "calibration.json",
        Calibration(shape="a" * 32, policy="epic", ratio=0.25),
    )

    calibration.write(path, expected={"model": "tiny"})

    assert Calibration.read(path) == calibration
    assert [file.name for file in tmp_path.iterdir()] == ["calibration.json"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"version": 2}, r"not a calibration of this version \(1\)"),
        ({"shape": None}, "shape is required"),
        ({"policy": "best"}, r"policy must be one of .*mean-layers"),
        ({"policy": "cachecraft"}, ": policy must be one of"),  # needs measurements
        ({"policy": "full"}, ": policy must be one of"),
        ({"policy": ["epic"]}, ": policy must be"),
        ({"ratio": 1.5}, ": ratio must be .* 1, got 1.5"),
        ({"ratio": True}, ": ratio must be"),
        ({"ratio": "0.2"}, ": ratio must be"),
        ({"ratio": float("nan")}, ": ratio must be"),
        ({"shape": "x" * MAX_BYTES}, "more than 65,536 bytes"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps({**GOOD, **changes}))

    with pytest.raises(ConfigError, match=sentence):
        Calibration.read(path)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"[" * 60_000, b"1", b"null"])
def test_what_is_no_object_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "calibration.json"
    path.write_bytes(raw)

    with pytest.raises(ConfigError, match=r"calibration\.json is (not|nested)"):
        Calibration.read(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for name in ("none", "pipe", "."):
        with pytest.raises(ConfigError, match="is not a file"):
            Calibration.read(tmp_path / name)


def test_a_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    model, path = build_adapter(), tmp_path / "calibration.json"
    Calibration(shape=shape_digest(model), policy="epic", ratio=0.2).write(path, expected={})
    settings = EngineChunkSettings.read({"calibration": str(path)})

    settings.check_model(model)
    with pytest.raises(ConfigError, match="made for another model than Qwen2ForCausalLM"):
        settings.check_model(build_adapter("qwen2-bias"))


def test_an_engine_takes_policy_and_ratio_of_the_calibration_and_of_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(GOOD))

    settings = EngineChunkSettings.read({"calibration": str(path)})

    assert (settings.defaults.policy, settings.defaults.ratio) == ("mean-layers", 0.2)
    with pytest.raises(ConfigError, match="`calibration` decides `ratio`"):
        EngineChunkSettings.read({"calibration": str(path), "ratio": 0.3})
    assert {"full", "reuse", "cachecraft"}.isdisjoint(calibrated_policies())
