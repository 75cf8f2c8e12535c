"""The open-loop benchmark: the aims of the adaptive room, in virtual time, and a real run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.datasets.workloads import generate
from benchmarks.scale.load import ARMS, Response, arrival_gaps, compare_rows, load_figures
from benchmarks.scale.open_loop import medians
from benchmarks.scale.simulated_load import Model, saturation, simulate_load, sweep
from tests.eventually import SERVER_START_S

ROOT = Path(__file__).parents[2]


def model(name: str = "neardup", **options: int) -> Model:
    return Model(generate(name, 200), **options)


@pytest.mark.slow
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("name", ["zipf", "topics", "neardup"])
def test_adaptive_is_never_slower_than_online_by_more_than_a_tenth(name: str, lanes: int) -> None:
    rows = sweep(
        model(name, lanes=lanes),
        ("online", "adaptive"),
        loads=(0.9, 1.1),
        processes=("poisson", "bursts"),
    )
    assert compare_rows(rows)["worst_p99_ratio"] <= 1.1
    by_arm = {
        arm: [row["hit_rate"] for row in rows if row["arm"] == arm]
        for arm in ("online", "adaptive")
    }
    gains_nothing = (name, lanes) == ("zipf", 4)  # the popularity tail finds what there is
    assert by_arm["adaptive"][-1] > by_arm["online"][-1] - (0.005 if gains_nothing else 0)


def test_goodput_above_saturation_is_what_was_aimed_at() -> None:
    made = model()
    per_s = saturation(made)
    goodput = {
        arm: simulate_load(made, arm, per_s=1.2 * per_s)["goodput_per_s"]
        for arm in ("plain", "online", "adaptive")
    }
    assert goodput["adaptive"] >= 1.5 * goodput["plain"]
    assert goodput["adaptive"] >= 1.15 * goodput["online"]


def test_nobody_is_held_at_low_load() -> None:
    made = model("topics")
    figures = {
        arm: simulate_load(made, arm, per_s=0.05 * saturation(made))
        for arm in ("online", "adaptive")
    }
    assert figures["adaptive"].pop("held_share") == 0
    assert figures["online"].pop("held_share") == 0
    assert figures["adaptive"] == figures["online"]


def test_replicas_are_not_slower_either() -> None:
    rows = sweep(
        model(replicas=2), ("online", "adaptive"), loads=(0.7, 1.1), processes=("poisson",)
    )
    assert compare_rows(rows)["worst_p99_ratio"] <= 1.1


def test_figures_count_what_came_in_time() -> None:
    responses = [Response(0.0, 1.0), Response(1.0, 4.0), Response(2.0, 10.0)]
    figures = load_figures(responses, ttft_bound_s=3.0)
    assert (figures["goodput_per_s"], figures["good_share"]) == (0.2, 0.6667)


@pytest.mark.parametrize("arrivals", ["poisson", "bursts"])
def test_arrivals_have_the_rate_that_was_asked_for(arrivals: str) -> None:
    gaps = arrival_gaps(4000, per_s=5.0, arrivals=arrivals, seed=1)  # type: ignore[arg-type]
    assert 4000 / sum(gaps) == pytest.approx(5.0, rel=0.15)
    assert gaps == arrival_gaps(4000, per_s=5.0, arrivals=arrivals, seed=1)  # type: ignore[arg-type]


def test_the_arms_are_those_of_the_question() -> None:
    assert len(ARMS) == 4
    assert ARMS["adaptive"]["waiting_room"] == {"mode": "adaptive"}


def test_figures_of_repeats_are_medians() -> None:
    repeats = [{"goodput_per_s": 1.0}, {"goodput_per_s": 5.0}, {"goodput_per_s": 2.0}]
    assert medians(repeats) == {"goodput_per_s": 2.0}


@pytest.mark.slow
def test_a_real_engine_is_measured_over_http(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    documents = [{"id": str(i), "text": f"Document {i} tells of {i}. " * 20} for i in range(12)]
    rows = [{"id": str(i), "doc_ids": [str((i + j) % 12) for j in range(3)]} for i in range(14)]
    queries = [{"id": str(i), "question": f"What about {i}?"} for i in range(14)]
    for name, lines in (("corpus", documents), ("retrieved_dense", rows), ("queries", queries)):
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (data / f"{name}.jsonl").write_text(text)
    command = [sys.executable, "-m", "benchmarks.scale.open_loop", "--engine", "embedded", "--json"]
    command += ["--data", str(data), "--requests", "6", "--load", "0.5", "--arm", "online"]
    command += ["--arm", "adaptive", "--arm", "planned", "--clients", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3 * SERVER_START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert [(row["arrivals"], row["arm"]) for row in result["rows"]] == [
        (arrivals, arm)
        for arrivals in ("poisson", "closed")
        for arm in ("online", "adaptive", "planned")
    ]
    assert all(0 < row["ttft_p50_s"] <= row["ttft_p99_s"] for row in result["rows"])
