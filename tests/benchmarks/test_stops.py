"""A benchmark that is asked to stop leaves none of its processes running."""

import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.eventually import SERVER_START_S, eventually

ROOT = Path(__file__).resolve().parents[2]
REDIS = shutil.which("redis-server") or shutil.which("valkey-server")


@pytest.mark.parametrize(
    ("arguments", "num_started"),
    [
        (["proxy.soak", "--minutes", "60"], 3),
        (["proxy", "--only", "ragboost", "--rounds", "500"], 2),
        pytest.param(
            [
                "scale.faults",
                "--only",
                "replica killed",
                "--balancer",
                "none",
                "--before",
                "100000",
            ],
            5,
            marks=pytest.mark.skipif(REDIS is None, reason="needs redis-server"),
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_sigterm_stops_what_a_benchmark_has_started(arguments: list[str], num_started: int) -> None:
    command = [sys.executable, "-m", f"benchmarks.{arguments[0]}", *arguments[1:]]
    benchmark = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    root, started = psutil.Process(benchmark.pid), []
    try:
        eventually(lambda: len(root.children()) >= num_started, within_s=SERVER_START_S)
        started = root.children(recursive=True)
        benchmark.terminate()
        assert benchmark.wait(SERVER_START_S) == 143
        assert [each for each in started if each.is_running()] == []
    finally:
        for each in [*started, root]:
            if each.is_running():
                each.kill()
        benchmark.wait()
