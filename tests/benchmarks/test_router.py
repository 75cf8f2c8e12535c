"""The benchmark of routing: virtual time, and the same figures every time."""

import pytest

from benchmarks.datasets.workloads import generate
from benchmarks.scale.load import ARMS as ROOM_ARMS
from benchmarks.scale.router import ARMS, measure, pooled_hit_rate


@pytest.mark.parametrize("load", [0.5, None])
def test_a_run_is_reproducible_and_serves_every_request(load: float | None) -> None:
    workload = generate("neardup", 60)
    arm = {**ROOM_ARMS["adaptive"], "backend": {"max_concurrency": 16}}
    runs = [measure(workload, "cache_aware", settings=arm, load=load, lanes=2) for _ in range(2)]
    for run in runs:
        del run["dispatch_us_p50"]  # the only figure of this machine
    assert runs[0] == runs[1]
    assert 0 < runs[0]["ttft_mean_s"] <= runs[0]["p99_ttft_s"] <= runs[0]["duration_s"]


def test_looking_at_caches_finds_more_in_them_and_starves_no_engine() -> None:
    workload = generate("neardup", 300)
    plain, aware = (
        measure(workload, arm, load=0.5, replicas=3) for arm in ("least_loaded", "cache_aware")
    )
    assert aware["hit_rate"] > plain["hit_rate"]
    assert aware["smallest_share"] > 0.8


@pytest.mark.parametrize("arm", ARMS)
def test_no_policy_finds_more_than_one_cache_of_all(arm: str) -> None:
    workload = generate("topics", 200)
    figures = measure(workload, arm, load=0.5, replicas=3)
    assert 0 < figures["hit_rate"] <= pooled_hit_rate(workload, engines=3)
    assert figures["dispatch_us_p50"] > 0
