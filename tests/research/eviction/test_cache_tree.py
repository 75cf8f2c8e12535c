"""The measuring cache evicts leaves only, stays within bounds, and Belady is its bound."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.errors import ChunkCacheError
from ragboost.simulate import simulate
from research.eviction import POLICIES
from research.eviction.belady import Belady
from research.eviction.cache_tree import CacheTree, Forest, PrefillCost
from research.eviction.schedules import SCHEDULES

PATHS = st.lists(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))


def cache_of(forest: Forest, name: str, capacity: int) -> CacheTree:
    return CacheTree(forest, POLICIES[name](), capacity=capacity)


def test_a_parent_goes_only_after_its_children() -> None:
    forest = Forest()
    stem, leaf = forest.path("ab", [1, 1])
    (other,) = forest.path("c", [1])
    cache = cache_of(forest, "lru", 2)
    cache.request([stem, leaf])

    cache.request([other])
    assert (stem in cache, leaf in cache) == (True, False)
    cache.request(forest.path("d", [1]))
    assert stem not in cache


def test_nodes_of_a_request_are_never_evicted_for_it() -> None:
    forest = Forest()
    cache = cache_of(forest, "lru", 3)
    nodes = forest.path("abcde", [1] * 5)
    assert cache.request(nodes) == (0, 5)
    assert cache.request(nodes) == (3, 5)
    cache.check_integrity()


def test_equal_names_behind_different_parents_are_different_nodes() -> None:
    forest = Forest()
    assert forest.path("ab", [1, 1])[1] != forest.path("cb", [1, 1])[1]
    assert forest.path("ab", [1, 1]) == [0, 1]


def test_a_prefill_costs_its_tokens_and_the_attention_to_those_in_front() -> None:
    cost = PrefillCost(per_token=2, per_pair=0.1)
    assert cost.seconds(10) == pytest.approx(20 + 0.1 * 50)
    assert cost.seconds(10, prefix=30) == pytest.approx(20 + 0.1 * (300 + 50))


@given(PATHS, st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_lru_is_the_exact_simulator(paths: list[list[str]], capacity: int) -> None:
    forest = Forest()
    cache = cache_of(forest, "lru", capacity)
    cached = sum(cache.request(forest.path(p, [1] * len(p))).cached_tokens for p in paths)

    exact = simulate(paths, dict.fromkeys("abcdef", 1), capacity_tokens=capacity)

    assert cached == exact.cached_tokens


@pytest.mark.parametrize("name", POLICIES)
@given(PATHS, st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_no_policy_breaks_the_tree_or_beats_belady(
    name: str, paths: list[list[str]], capacity: int
) -> None:
    forest = Forest()
    requests = [forest.path(path, [1] * len(path)) for path in paths]
    cached = {}
    for policy in (POLICIES[name](), Belady(requests)):
        cache = CacheTree(forest, policy, capacity=capacity)
        cached[type(policy)] = 0
        for number, request in enumerate(requests):
            policy.look_ahead(requests[number + 1 : number + 3])
            cached[type(policy)] += cache.request(request).cached_tokens
            cache.check_integrity()
    mine, bound = cached.values()
    assert mine <= bound


@given(PATHS, st.integers(1, 12))
@settings(max_examples=25, deadline=None)
def test_next_use_is_belady_when_it_sees_the_whole_future(
    paths: list[list[str]], capacity: int
) -> None:
    forest = Forest()
    requests = [forest.path(path, [1] * len(path)) for path in paths]
    cached = []
    for policy in (POLICIES["next-use"](), Belady(requests)):
        cache = CacheTree(forest, policy, capacity=capacity)
        total = 0
        for number, request in enumerate(requests):
            policy.look_ahead(requests[number + 1 :])
            total += cache.request(request).cached_tokens
        cached.append(total)
    assert cached[0] == cached[1]


def test_a_cache_without_room_is_refused() -> None:
    with pytest.raises(ChunkCacheError, match="capacity must be at least 1 token, got 0"):
        cache_of(Forest(), "lru", 0)


def test_schedules_pick_by_arrival_by_cache_and_by_what_was_served_last() -> None:
    forest = Forest()
    paths = {name: forest.path(name, [1] * len(name)) for name in ("xy", "ab", "cd", "abc", "cde")}
    cache = cache_of(forest, "lru", 10)
    cache.request(paths["ab"])
    waiting = [paths["xy"], paths["cde"], paths["abc"]]
    picks = {name: pick(waiting, cache, forest, paths["cd"]) for name, pick in SCHEDULES.items()}
    assert picks == {"fcfs": 0, "lpm": 2, "lsp": 1}
