"""The fidelity benchmark on real servers that evict all the time: its figures stay above the bars.

Run as anybody runs it, one engine for all cases of a signal; the last lines of the test run show
each case's figures, whether it passes or not.
"""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.engines.conftest import FIGURES, require
from tests.engines.servers import ROOT, Kind

Done = subprocess.CompletedProcess[str]
pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(900)]


class Case(NamedTuple):
    kind: Kind
    signal: str
    ends: str
    concurrency: int = 1

    def __str__(self) -> str:
        return "-".join(self[:3])


# Measured through the proxy in November 2026, see docs/lab/fidelity.md.
BARS = {
    Case("embedded", "events", "counted"): 0.99,
    Case("vllm", "events", "counted"): 0.99,
    Case("sglang", "events", "counted"): 0.99,
    Case("vllm", "hook", "counted"): 0.99,
    Case("sglang", "hook", "counted"): 0.99,
    # Ends of documents are guessed from bytes: a cached block more or less in one request of five
    # with the relevance tail (.971), in more with the popularity tail, which shares more prefixes
    # that end at a document (.949; its hit rate is .246 instead of .223).
    Case("embedded", "events", "estimated"): 0.94,
}
IN_FLIGHT = [case._replace(concurrency=8) for case in list(BARS)[:5]]
# Sums of 17 probes, in which a single block of 32 tokens is 1 %.
AT_REST = 0.97
# A forecast of what the others evict before a request is computed. It depends on the order in which
# the engine takes requests that were sent within a millisecond, so the figure is
# printed, and the bar only finds a forecast that makes no sense. Measured: docs/lab/fidelity.md.
AT_DISPATCH = 0.75


def cases_of(kind: Kind, signal: str) -> list[Case]:
    return [case for case in [*BARS, *IN_FLIGHT] if case[:2] == (kind, signal)]


def measure(kind: Kind, signal: str) -> Done:
    """Start one engine and measure all of its cases, each with an empty cache and a new proxy."""
    cases = cases_of(kind, signal)
    command = [sys.executable, "-m", "benchmarks.engines.fidelity"]
    command += ["--engine", kind, "--signal", signal]
    command += ["--ends", *(case.ends for case in cases)]
    command += ["--concurrency", *(str(case.concurrency) for case in cases)]
    command += ["--cache", "small", "--requests", "300", "--json"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840)


@pytest.fixture(scope="module")
def measured() -> Callable[[Kind, str], Done]:
    """Measure each engine and signal once, whether it fails or not."""
    return functools.cache(measure)


@pytest.fixture
def figures(
    case: Case,
    measured: Callable[[Kind, str], Done],
    record_property: Callable[[str, object], None],
) -> dict[str, Any]:
    require(case.kind)
    done = measured(case.kind, case.signal)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    figures: dict[str, Any] = json.loads(lines[cases_of(case.kind, case.signal).index(case)])
    named = ("precision", "recall", "predicted_over_reported", "num_probes", "hit_rate")
    shown = " ".join(f"{name}={figures[name]}" for name in named)
    record_property(FIGURES, f"fidelity {case}, {case.concurrency} in flight: {shown}")
    assert figures["state"] == "exact"
    assert figures["hit_rate"] > 0.1, "nothing was reused, so nothing was predicted"
    return figures


@pytest.mark.parametrize(("case", "bar"), BARS.items(), ids=map(str, BARS))
def test_the_index_equals_the_engines_cache(bar: float, figures: dict[str, Any]) -> None:
    assert figures["num_probes"] == 300
    assert figures["precision"] >= bar
    assert figures["recall"] >= bar
    assert bar <= figures["predicted_over_reported"] <= 1 / bar


@pytest.mark.parametrize("case", IN_FLIGHT, ids=map(str, IN_FLIGHT))
def test_eight_requests_in_flight_are_predicted(figures: dict[str, Any]) -> None:
    assert figures["num_probes"] >= 15
    assert figures["precision"] >= AT_REST
    assert figures["recall"] >= AT_REST
    assert AT_DISPATCH <= figures["predicted_over_reported"] <= 1 / AT_DISPATCH
