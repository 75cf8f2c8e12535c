"""Samples of a workload share as their description says."""

from benchmarks.datasets.workloads import generate
from benchmarks.ordering.samples import Lengths, compare, compare_stretches

LENGTHS = Lengths(document=300, question=100, cache=100_000)


def test_a_small_batch_shares_less_than_the_whole_and_stretches_share_like_the_whole() -> None:
    contexts = generate("neardup", 2_000, k=6).contexts

    first = compare("first", contexts[:200], LENGTHS)
    sampled = compare_stretches(contexts, LENGTHS)
    whole = compare("all", contexts, LENGTHS)

    assert first["boosted_hit_rate"] < whole["boosted_hit_rate"] - 0.05
    assert abs(sampled["boosted_hit_rate"] - whole["boosted_hit_rate"]) < 0.05
    for row in (first, sampled, whole):
        assert row["plain_hit_rate"] < row["online_hit_rate"] < row["boosted_hit_rate"]
        assert row["prefill_ratio"] > 1
