from benchmarks.datasets.workloads import generate
from benchmarks.ordering.oracle import measure


def test_a_plan_is_near_the_oracle_and_no_order_is_above_it() -> None:
    workload = generate("topics", 100, k=8, seed=1)

    result = measure(workload, seconds=0.2)

    shares = result["share"]["topics"]
    assert set(shares) == {"online", "window64", "plan"}
    assert 0.9 < shares["plan"] <= 1.0
    assert shares["online"] <= 1.0
    assert result["hit_rate"]["oracle"] >= result["hit_rate"]["plan"]
