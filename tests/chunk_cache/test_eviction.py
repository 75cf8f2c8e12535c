"""Every formula worked out by hand, and what all policies have in common."""

import pytest

from ragboost.chunk_cache.eviction import (
    LACR,
    EvictionPolicy,
    Heat,
    Use,
)
from research.eviction import POLICIES
from research.eviction.lfu import NextUseLFU
from research.eviction.next_use import NextUse


def use(
    now: float = 0.0,
    *,
    size: float = 1.0,
    cost: float = 1.0,
    is_hit: bool = True,
    cfo: float = 0.0,
) -> Use:
    return Use(now, size, cost, is_hit, cfo)


def order(policy: EvictionPolicy, keys: str) -> str:
    """Keys from the first to go to the last."""
    return "".join(sorted(keys, key=policy.priority))


@pytest.mark.parametrize("name", ["lfu", "next-use-lfu", "lru", "heat", "lacr", "next-use"])
def test_a_policy_forgets_what_was_evicted(name: str) -> None:
    policy = POLICIES[name]()
    for now in range(5):
        policy.used("often", use(now, is_hit=now > 0))
    policy.used("once", use(5, is_hit=False))
    policy.evicted("often")
    policy.evicted("never seen")

    policy.used("often", use(6, is_hit=False))
    policy.used("once", use(7))

    assert policy.priority("often") <= policy.priority("once")


@pytest.mark.parametrize("name", ["lfu", "next-use-lfu", "lru", "heat", "lacr", "next-use"])
def test_an_entry_that_was_used_again_outranks_one_that_was_not(name: str) -> None:
    policy = POLICIES[name]()
    policy.used("a", use(0, is_hit=False))
    policy.used("b", use(1, is_hit=False))
    policy.used("a", use(2))

    assert policy.priority("b") < policy.priority("a")


def test_lru_goes_by_the_last_use_and_lfu_by_the_number_of_uses() -> None:
    lru, lfu = POLICIES["lru"](), POLICIES["lfu"]()
    for policy in (lru, lfu):
        for now, key in enumerate("aabccb"):
            policy.used(key, use(now))
        policy.used("b", use(6))
    assert order(lru, "abc") == "acb"
    assert [lfu.priority(key) for key in "abc"] == [2, 3, 2]


def test_the_least_heat_times_cost_per_byte_goes_first() -> None:
    policy = Heat()
    policy.used("a", use(0, size=8, cost=8))
    policy.used("a", use(0, size=8, cost=8))  # heat 2
    policy.used("b", use(600, size=8, cost=8))  # heat 1; a has cooled to 1
    assert policy.priority("a") == pytest.approx(policy.priority("b"))

    policy.used("cheap", use(600, size=8, cost=4))
    policy.used("large", use(600, size=32, cost=8))

    assert policy.priority("large") < policy.priority("cheap") < policy.priority("b")


def test_lacr_weighs_normalised_history_and_future() -> None:
    waiting = ["ab", "b", "c", "b"]  # W = 4: weights 1, 3/4, 1/2, 1/4
    policy = LACR()
    for key in "aaaabbd":  # counts 4, 2, 1: H = 1, 1/2, 1/4
        policy.used(key, use())
    policy.look_ahead(waiting)  # F = 1/2, 1, 0

    assert policy.priority("a") == pytest.approx(0.2 * 1 + 0.8 * 0.5)
    assert policy.priority("b") == pytest.approx(0.2 * 0.5 + 0.8 * 1)
    assert policy.priority("d") == pytest.approx(0.2 * 0.25)
    assert order(policy, "abd") == "dab"

    policy.evicted("a")
    assert policy.priority("d") == pytest.approx(0.2 * 0.5), "the greatest count has gone"
    policy.look_ahead([])
    assert order(policy, "bd") == "db", "without a queue it is LFU"


def test_lacr_keeps_what_the_queue_will_use_where_history_alone_evicts_it() -> None:
    """DepCache figure 9: nodes 8 and 9 are least used so far, and job 6 in the queue needs them."""
    policy = LACR()
    for key, count in {7: 2, 8: 1, 9: 1, 16: 2, 17: 2}.items():
        for _ in range(count):
            policy.used(key, use())
    assert {8, 9} == set(sorted((7, 8, 9, 16, 17), key=policy.priority)[:2])
    policy.look_ahead([(1, 2, 3, 5, 6), (7, 8, 9)])
    assert {16, 17} == set(sorted((7, 8, 9, 16, 17), key=policy.priority)[:2])


def test_next_use_ranks_the_queue_above_all_history() -> None:
    policy = NextUse()
    for now, key in enumerate("ssssabc"):
        policy.used(key, use(now))
    policy.look_ahead(["c", "a", "c"])
    assert order(policy, "abcs") == "sbac"
    policy.look_ahead([])
    assert order(policy, "abcs") == "sabc", "without a queue it is LRU"


def test_next_use_that_counts_is_lfu_with_ageing_behind_the_queue() -> None:
    policy = NextUseLFU()
    for key in "aaabb":
        policy.used(key, use())
    assert order(policy, "ab") == "ba"
    policy.evicted("a")  # the clock is at 3
    policy.used("c", use())
    assert order(policy, "bc") == "bc", "new entries start above what was evicted"
