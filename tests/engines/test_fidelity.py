"""The fidelity benchmark on real servers that evict all the time: its figures stay above the bars.

Run as anybody runs it; each line of figures is printed, whether it passes or not.
"""

import json
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from tests.engines.conftest import require
from tests.engines.servers import ROOT, Kind

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]


class Run(NamedTuple):
    kind: Kind
    signal: str
    ends: str

    def measure(self, capsys: pytest.CaptureFixture[str], *, concurrency: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.engines.fidelity", "--engine", self.kind]
        command += ["--signal", self.signal, "--ends", self.ends, "--cache", "small", "--json"]
        command += ["--requests", "300", "--concurrency", str(concurrency)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)
        assert done.returncode == 0, done.stderr[-3000:]
        figures: dict[str, Any] = json.loads(done.stdout)
        named = ("precision", "recall", "predicted_over_reported", "num_probes", "hit_rate")
        shown = " ".join(f"{name}={figures[name]}" for name in named)
        with capsys.disabled():
            sys.stdout.write(f"\nfidelity {' '.join(self)}, {concurrency} in flight: {shown}\n")
        assert figures["state"] == "exact"
        assert figures["hit_rate"] > 0.1, "nothing was reused, so nothing was predicted"
        return figures


# Measured through the proxy in November 2026, see docs/lab/fidelity.md.
RUNS = {
    Run("embedded", "events", "counted"): 0.99,
    Run("vllm", "events", "counted"): 0.99,
    Run("sglang", "events", "counted"): 0.99,
    Run("vllm", "hook", "counted"): 0.99,
    Run("sglang", "hook", "counted"): 0.99,
    Run("vllm", "events", "told"): 0.99,
    Run("sglang", "events", "told"): 0.99,
    # Ends of documents are guessed from bytes: a cached block more or less in one request of five.
    Run("embedded", "events", "estimated"): 0.96,
}


@pytest.mark.parametrize(("run", "bar"), RUNS.items(), ids=["-".join(run) for run in RUNS])
def test_the_index_equals_the_engines_cache(
    run: Run, bar: float, capsys: pytest.CaptureFixture[str]
) -> None:
    require(run.kind)
    figures = run.measure(capsys, concurrency=1)
    assert figures["num_probes"] == 300
    assert figures["precision"] >= bar
    assert figures["recall"] >= bar
    assert bar <= figures["predicted_over_reported"] <= 1 / bar


# Sums of 17 probes, in which a single block of 32 tokens is 1 %.
AT_REST = 0.97
# A forecast of what the others evict before a request is computed. It depends on the order in which
# the engine takes requests that were sent within a millisecond, so the figure is
# printed, and the bar only finds a forecast that makes no sense. Measured: docs/lab/fidelity.md.
AT_DISPATCH = 0.75


@pytest.mark.parametrize("run", list(RUNS)[:5], ids=["-".join(run) for run in list(RUNS)[:5]])
def test_eight_requests_in_flight_are_predicted(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    require(run.kind)
    figures = run.measure(capsys, concurrency=8)
    assert figures["num_probes"] >= 15
    assert figures["precision"] >= AT_REST
    assert figures["recall"] >= AT_REST
    assert AT_DISPATCH <= figures["predicted_over_reported"] <= 1 / AT_DISPATCH
