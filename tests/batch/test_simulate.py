"""The simulator equals a naive cache that keeps every prefix in a dictionary."""

from collections.abc import Hashable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.batch.simulate import HitRate, SimulatedCache, simulate
from ragboost.errors import RequestError

TOKENS = {"a": 3, "b": 5, "c": 1, "d": 8, "empty": 0}


class NaiveCache:
    """Items are prefixes of documents."""

    def __init__(self, tokens: dict[str, int], capacity: int | None):
        self.tokens, self.capacity = tokens, capacity
        self.last_used: dict[Hashable, int] = {}
        self.cost: dict[Hashable, int] = {}
        self.clock = 0

    def path(self, documents: Sequence[str]) -> list[tuple[Hashable, int]]:
        prefixes = [tuple(documents[: i + 1]) for i in range(len(documents))]
        return [((prefix,), self.tokens[prefix[-1]]) for prefix in prefixes]

    def is_leaf(self, item: Hashable) -> bool:
        return not any(item != other and self.is_parent(item, other) for other in self.last_used)

    def is_parent(self, item: Hashable, other: Hashable) -> bool:
        return other[0][: len(item[0])] == item[0]

    def request(self, documents: Sequence[str]) -> int:
        self.clock += 1
        path = self.path(documents)
        hit = 0
        while hit < len(path) and path[hit][0] in self.last_used:
            self.last_used[path[hit][0]] = self.clock
            hit += 1
        for item, cost in path[hit:]:
            while self.capacity is not None and sum(self.cost.values()) + cost > self.capacity:
                leaves = [
                    other
                    for other, used in self.last_used.items()
                    if used < self.clock and self.is_leaf(other)
                ]
                if not leaves:
                    return sum(cost for _, cost in path[:hit])
                oldest = min(leaves, key=self.last_used.__getitem__)
                del self.last_used[oldest], self.cost[oldest]
            self.last_used[item] = self.clock
            self.cost[item] = cost
        return sum(cost for _, cost in path[:hit])


@settings(max_examples=200, deadline=None)
@given(
    orders=st.lists(st.lists(st.sampled_from(sorted(TOKENS)), max_size=6), max_size=25),
    capacity=st.none() | st.integers(0, 40),
)
def test_cache_equals_a_naive_one_after_every_request(
    orders: list[list[str]], capacity: int | None
) -> None:
    cache = SimulatedCache(TOKENS, capacity_tokens=capacity)
    naive = NaiveCache(TOKENS, capacity)

    for order in orders:
        used = cache.request(order)
        assert used.cached_tokens == naive.request(order)
        assert used.prompt_tokens == sum(TOKENS[document] for document in order)
        assert cache.num_tokens == sum(naive.cost.values())


def test_shared_prefix_is_counted_and_a_different_order_is_not() -> None:
    orders = [["a", "b", "c"], ["a", "b", "d"], ["b", "a", "c"]]

    assert simulate(orders, TOKENS, capacity_tokens=None) == HitRate(8, 9 + 16 + 9)


def test_least_recently_used_leaf_goes_first() -> None:
    cache = SimulatedCache({"p": 1, "q": 1, "r": 1, "s": 1}, capacity_tokens=3)
    for order in (["p", "q"], ["r"], ["p"], ["s"]):  # ["s"] evicts q, the oldest leaf, not r or p
        cache.request(order)

    assert cache.request(["r"]).cached_tokens == 1
    assert cache.request(["p", "q"]).cached_tokens == 1


def test_prompt_larger_than_the_cache_keeps_the_prefix_that_fits() -> None:
    cache = SimulatedCache(TOKENS, capacity_tokens=8)

    assert [cache.request(["a", "b", "d"]).cached_tokens for _ in range(3)] == [0, 8, 8]


def test_no_requests_and_empty_requests_have_hit_rate_zero() -> None:
    assert simulate([], TOKENS, capacity_tokens=10).hit_rate == 0.0
    assert simulate([[], []], TOKENS, capacity_tokens=0).hit_rate == 0.0


def test_token_counts_may_be_a_function() -> None:
    assert simulate([["x", "yy"], ["x"]], len, capacity_tokens=None) == HitRate(1, 4)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(RequestError, match="capacity_tokens must be at least 0, got -1"):
        simulate([], TOKENS, capacity_tokens=-1)
    with pytest.raises(RequestError, match="tokens of document 'x' must be at least 0, got -2"):
        simulate([["x"]], {"x": -2}, capacity_tokens=1)
