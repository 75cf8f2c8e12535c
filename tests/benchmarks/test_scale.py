"""`benchmarks.scale.clusters` on small sizes: its simulation and its arithmetic."""

import pytest

from benchmarks.datasets.workloads import Workload
from benchmarks.scale.clusters import cost_rows, hit_rows
from benchmarks.scale.costs import UnitCosts, steady_batches, unit_costs
from benchmarks.scale.simulation import Cluster, simulate_cluster
from ragboost.cache_sync.event_stream import EventStream, StreamState


def tiny_workload(num: int) -> Workload:
    """Two sets of documents, asked for in turn."""
    sets = [["a", "b", "c"], ["d", "e", "f"]]
    return Workload("tiny", [list(sets[at % 2]) for at in range(num)], dict.fromkeys("abcdef", 128))


def test_one_proxy_predicts_what_its_engine_has_cached() -> None:
    row = simulate_cluster(Cluster(1, 1, load=0.05), tiny_workload(20))

    assert row["hit_rate"] == pytest.approx(3 * 128 / (3 * 128 + 64), abs=0.001)
    assert row["predicted_in_vain"] == row["not_predicted"] == 0.0


def test_proxies_that_share_layouts_predict_what_others_have_sent() -> None:
    workload = tiny_workload(40)
    own = simulate_cluster(Cluster(2, 4, load=0.05), workload)
    shared = simulate_cluster(Cluster(2, 4, load=0.05, are_layouts_shared=True), workload)

    assert shared["not_predicted"] <= own["not_predicted"]
    assert shared["hit_rate"] >= own["hit_rate"]


def test_simulations_are_the_same_every_time() -> None:
    cluster = Cluster(2, 2, 0.1)
    first, again = (hit_rows([cluster], min_requests=60, requests_per_engine=1) for _ in range(2))

    assert first == again


def test_batches_of_a_full_cache_keep_its_size() -> None:
    stream = EventStream()
    stream.connected()
    for number, batch in enumerate(steady_batches(6, cache_blocks=40, num_blocks=10)):
        stream.receive(number, batch)

    assert stream.state is StreamState.EXACT
    assert len(stream.mirror) == 40
    assert stream.counts["num_removed"] == 6


def test_costs_grow_with_engines_and_proxies_as_they_are_counted() -> None:
    costs = UnitCosts(10_000, 1000.0, 1000, 10.0, 20.0, 50.0, 1.0, 10_000_000)
    rows = {(r["engines"], r["proxies"]): r for r in cost_rows(costs, tokens_per_s=50_000)}

    one, many = rows[1, 1], rows[100, 4]
    assert one["requests_per_s"] == 25
    assert one["events_cores"] == 0.025
    assert one["routing_cores"] == one["loads_cores"] == one["layouts_cores"] == 0.0
    assert many["events_cores"] == 2.5  # each proxy follows all engines
    assert many["routing_cores"] == 0.013  # 625 requests, 20 us
    assert many["events_mb_per_s"] == 25.0
    assert many["engine_out_mb_per_s"] == 1.0
    assert many["mirror_gb"] == 1.0


def test_every_unit_cost_is_measured() -> None:
    assert min(unit_costs(prompts=10, engines=3)) > 0
