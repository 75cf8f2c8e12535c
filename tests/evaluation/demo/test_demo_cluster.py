"""`make demo-cluster` on the tiny engine, and without a Redis server."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.redis import PROGRAM

ROOT = Path(__file__).parents[3]


def run(*options: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    if path is not None:
        env["PATH"] = path
    command = [sys.executable, "-m", "scripts.demo_cluster", *options]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_without_a_redis_server_it_says_what_to_install(tmp_path: Path) -> None:
    done = run(path=str(tmp_path))

    assert done.returncode == 2
    assert "apt-get install redis-server" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server")
def test_no_turn_is_lost_when_a_replica_is_killed() -> None:
    sizes = ["--engine-size", "tiny", "--conversations", "4", "--turns", "3", "--k", "4"]
    done = run("--json", *sizes)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [each["turns"] for each in result["phases"]] == [12, 12, 12]
    assert [each["lost"] for each in result["phases"]] == [0, 0, 0]
    assert result["doubled"] == 0
