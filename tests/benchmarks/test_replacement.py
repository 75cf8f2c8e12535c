"""The replacement benchmark finds what its page says, on a small run."""

import argparse

import pytest

from benchmarks.graph.replacement import WORKLOADS, measure, run


@pytest.mark.parametrize("workload", WORKLOADS)
def test_policies_that_see_the_queue_are_between_history_and_belady(workload: str) -> None:
    args = argparse.Namespace(seeds=1, requests=200, shape="chunks")
    rate = measure(workload, 0.2, args, queue=32)
    for name in ("lacr", "next-use", "next-use-lfu"):
        assert max(rate["lru"], rate["lfu"], rate["pgdsf"]) < rate[name] <= rate["belady"]
    assert all(0 < value < 1 for value in rate.values())


def test_margins_are_differences_of_means_in_points() -> None:
    args = argparse.Namespace(
        seeds=1,
        requests=60,
        shape="prefix",
        sweep=None,
        queue=8,
        workload=["uniform", "zipf"],
        capacity=[0.2],
    )
    result = run(args, lambda _text: None)
    rates = [row["hit_rate"] for row in result["rows"]]
    assert [row["workload"] for row in result["rows"]] == ["uniform", "zipf"]
    expected = 50 * sum(rate["lacr"] - rate["lru"] for rate in rates)
    assert result["lacr_margin_points"]["mean"]["lru"] == pytest.approx(expected, abs=0.06)
