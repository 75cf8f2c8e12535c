"""The fidelity benchmark on real servers that evict all the time: its figures stay above the bars.

Run as anybody runs it; each line of figures is printed, whether it passes or not.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.engine_servers import ROOT, Kind
from tests.engines.conftest import require

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]

BARS = {"events": 0.99, "hook": 0.97}
# Eight in flight, as predicted at dispatch: a guess at what others evict before a request's turn.
# Below what was measured (docs/lab), as runs differ by how requests happen to meet.
DISPATCH_BARS = {"vllm": 0.96, "embedded": 0.94, "sglang": 0.93}


def measure(
    kind: Kind, capsys: pytest.CaptureFixture[str], *, signal: str, concurrency: int
) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.fidelity", "--engine", kind, "--signal", signal]
    command += ["--requests", "300", "--cache", "small", "--concurrency", str(concurrency)]
    done = subprocess.run(
        [*command, "--json"], cwd=ROOT, capture_output=True, text=True, timeout=840
    )
    assert done.returncode == 0, done.stderr[-3000:]
    figures: dict[str, Any] = json.loads(done.stdout)
    named = ("precision", "recall", "predicted_over_reported", "num_probes", "hit_rate")
    told = " ".join(f"{name}={figures[name]}" for name in named)
    with capsys.disabled():
        sys.stdout.write(f"\nfidelity {kind} {signal}, {concurrency} in flight: {told}\n")
    return figures


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize(
    ("kind", "signal"),
    [
        ("embedded", "events"),
        ("vllm", "events"),
        ("sglang", "events"),
        ("vllm", "hook"),
        ("sglang", "hook"),
    ],
)
def test_the_index_equals_the_engines_cache(
    kind: Kind, signal: str, concurrency: int, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    figures = measure(kind, capsys, signal=signal, concurrency=concurrency)
    assert figures["state"] == "exact"
    assert figures["num_probes"] >= 15
    assert figures["hit_rate"] > 0.1, "nothing was reused, so nothing was predicted"
    for of in (figures["at_rest"]["mirror"], figures["at_rest"]["documents"]):
        assert of["precision"] >= BARS[signal], figures["at_rest"]
        assert of["recall"] >= BARS[signal], figures["at_rest"]
    bar = BARS[signal] if concurrency == 1 else DISPATCH_BARS[kind]
    ratio = figures["predicted_over_reported"]
    assert bar <= ratio <= 1 / bar
