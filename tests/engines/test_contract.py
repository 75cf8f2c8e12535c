"""The engines' own cache classes, each in its environment: drift there fails here first."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import require
from tests.engines.servers import Kind, environment, python

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(300)]


def run(kind: Kind) -> Any:
    require(kind)
    script = Path(__file__).with_name(f"contract_{kind}.py")
    done = subprocess.run(
        [*python(kind), "-W", "ignore", str(script)],
        env=environment(kind),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_vllms_block_pool_is_mirrored_and_its_hits_are_predicted_exactly() -> None:
    told = run("vllm")
    assert told.pop("batches") > 1000
    assert told.pop("num_requests") > 0
    assert told == {
        "stream": "3",
        "lost": 0,
        "wrong_states": 0,
        "wrong_hits": 0,
        "wrong_requests": 0,
        "is_partial": False,
    }


def test_both_trees_of_sglang_are_mirrored_and_their_hits_are_predicted_exactly() -> None:
    told = run("sglang")
    assert set(told) == {"radix", "unified"}
    for name, tree in told.items():
        assert tree.pop("batches") > 1000
        # Only the unified tree, which servers use by default, tags blocks with the request.
        assert (tree.pop("num_requests") > 0) == (name == "unified")
        assert tree == {
            "stream": "2",
            "lost": 0,
            "wrong_sizes": 0,
            "wrong_hits": 0,
            "wrong_requests": 0,
            "is_partial": False,
        }
