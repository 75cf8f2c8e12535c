"""Chunk reuse inside vLLM and SGLang answers a language model's prompts as the library does."""

import json
import subprocess
import sys
from typing import Literal

import pytest

from ragboost.config.model_directory import find_model
from ragboost.errors import ConfigError
from tests.engines.conftest import require

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engine_answers_as_the_library(engine: Literal["vllm", "sglang"]) -> None:
    pytest.importorskip("torch", reason="needs the extra engine")
    from benchmarks.language.guard import MODEL

    require(engine)
    try:
        find_model(MODEL)
    except ConfigError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "benchmarks.language.engines", "--engine", engine]

    done = subprocess.run(
        [*command, "--limit", "2", "--json"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["first_equal"] == 2
    assert found["full_logprob_difference"] < 1e-3
    assert found["reused_logprob_difference"] < 1e-3
    assert found["kl"] > 0.1  # reuse is no full attention here
