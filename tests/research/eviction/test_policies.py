"""GDSF, PGDSF and reuse frequency, each computed by hand."""

import pytest

from ragboost.errors import ChunkCacheError
from research.eviction import POLICIES
from research.eviction.gdsf import GDSF, PGDSF
from research.eviction.reuse_frequency import ReuseFrequency
from tests.chunk_cache.test_eviction import order, use


@pytest.mark.parametrize("name", ["gdsf", "pgdsf", "f_r"])
def test_an_entry_that_was_used_again_outranks_one_that_was_not_and_is_forgotten(name: str) -> None:
    policy = POLICIES[name]()
    policy.used("a", use(0, is_hit=False))
    policy.used("b", use(1, is_hit=False))
    policy.used("a", use(2))
    assert policy.priority("b") < policy.priority("a")

    policy.evicted("a")
    policy.evicted("never seen")
    policy.used("a", use(3, is_hit=False))
    policy.used("b", use(4))
    assert policy.priority("a") <= policy.priority("b")


def test_a_half_life_of_zero_is_refused() -> None:
    with pytest.raises(ChunkCacheError, match="must be above 0, got 0"):
        ReuseFrequency(half_life_s=0)


def test_gdsf_is_clock_plus_frequency_times_cost_over_size() -> None:
    policy = GDSF()
    policy.used("a", use(size=4, cost=2))  # 0 + 1 * 2/4
    policy.used("b", use(size=1, cost=3))  # 0 + 1 * 3/1
    policy.used("a", use(size=4, cost=6))  # 0 + 2 * 6/4: the newest cost
    assert (policy.priority("a"), policy.priority("b")) == (3.0, 3.0)

    policy.evicted("a")
    policy.used("c", use(size=2, cost=1))  # the clock is at 3 now: 3 + 1/2

    assert policy.clock == 3.0
    assert policy.priority("c") == 3.5
    assert policy.priority("b") == 3.0, "what is not used again stays where it was"


def test_pgdsf_averages_the_cost_over_the_uses_that_computed_the_entry() -> None:
    policy = PGDSF()
    policy.used("a", use(size=2, cost=2, is_hit=False))  # mean 1
    assert policy.priority("a") == 1.0
    policy.used("a", use(size=2, cost=100))  # a hit costs nothing: 2 * 1
    assert policy.priority("a") == 2.0
    policy.used("a", use(size=2, cost=6, is_hit=False))  # mean (1 + 3) / 2, frequency 3
    assert policy.priority("a") == 6.0


def test_reuse_frequency_adds_the_inverse_cfo_of_each_hit() -> None:
    policy = ReuseFrequency()
    policy.used("a", use(cfo=0.5, is_hit=False))
    assert policy.priority("a") == 0.0, "storing is no reuse"
    policy.used("a", use(cfo=0.5))
    policy.used("a", use(cfo=0.25))
    assert policy.priority("a") == 2 + 4
    policy.used("b", use(cfo=0.0))
    assert policy.priority("b") == pytest.approx(20), "an exact hit counts as CFO 0.05"


def test_reuse_frequency_halves_in_a_half_life() -> None:
    policy = ReuseFrequency(half_life_s=10)
    policy.used("old", use(0, cfo=0.1))  # 10 at 0 s, 5 at 10 s
    policy.used("new", use(10, cfo=0.25))  # 4 at 10 s
    policy.used("never", use(10, is_hit=False))
    assert order(policy, ("never", "new", "old")) == "nevernewold"  # type: ignore[arg-type]
    policy.used("new", use(10, cfo=0.5))  # 6
    assert policy.priority("old") < policy.priority("new")
