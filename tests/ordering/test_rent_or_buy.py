"""Purchases cost at most twice the best decisions in hindsight, whatever is expected."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ragboost.ordering import Purchase, RentLedger

LENGTHS = {"a": 100, "b": 40, "c": 7, "d": 260}
# A request: its documents in prompt order. An eviction: the prefix that is lost.
REQUESTS = st.permutations("abcd").flatmap(
    lambda order: st.integers(1, 4).map(lambda count: ("request", "".join(order[:count])))
)
EVICTIONS = st.permutations("abcd").flatmap(
    lambda order: st.integers(1, 2).map(lambda count: ("evict", "".join(order[:count])))
)


class AdvisedLedger(RentLedger):
    """A ledger whose expectation is drawn by the test."""

    expected_returns: float | None = None

    def _expected_returns(self, phase: Any) -> float | None:
        advised = self.expected_returns
        return super()._expected_returns(phase) if advised is None else advised


class Replay:
    """A prefix cache that holds what the ledger buys, and loses what the trace says."""

    def __init__(self, ratio: float, **bounds: int) -> None:
        self.ledger = AdvisedLedger(**bounds)
        self.ratio = ratio
        self.cached: set[str] = set()
        self.cost = 0.0

    def request(self, documents: str, returns: float | None = None) -> Purchase:
        tokens = [LENGTHS[document] for document in documents]
        prefixes = [documents[: i + 1] for i in range(len(documents))]
        cached_tokens = sum(n for n, p in zip(tokens, prefixes, strict=True) if p in self.cached)
        self.ledger.expected_returns = returns
        bought = self.ledger.decide(
            documents,
            tokens,
            cached_tokens=cached_tokens,
            ratio=self.ratio,
        )
        self.cached.update(prefixes[: bought.num_documents])
        rest = sum(tokens) - cached_tokens - bought.bought_tokens
        self.cost += bought.bought_tokens + self.ratio * rest
        return bought

    def evict(self, prefix: str) -> None:
        self.cached = {other for other in self.cached if not other.startswith(prefix)}


def optimum(trace: Sequence[tuple[str, str]], ratio: float) -> float:
    """Return the least cost by trying every purchase of every request."""

    @cache
    def least(at: int, cached: frozenset[str]) -> float:
        if at == len(trace):
            return 0.0
        kind, documents = trace[at]
        if kind == "evict":
            kept = frozenset(other for other in cached if not other.startswith(documents))
            return least(at + 1, kept)
        return min(
            cost + least(at + 1, cached | bought)
            for cost, bought in _choices(documents, cached, ratio)
        )

    return least(0, frozenset())


def _choices(
    documents: str, cached: frozenset[str], ratio: float
) -> Iterator[tuple[float, frozenset[str]]]:
    prefixes = [documents[: i + 1] for i in range(len(documents))]
    missing = [(p, LENGTHS[p[-1]]) for p in prefixes if p not in cached]
    for count in range(len(missing) + 1):
        bought, rented = missing[:count], missing[count:]
        cost = sum(n for _, n in bought) + ratio * sum(n for _, n in rented)
        yield cost, frozenset(p for p, _ in bought)


@example([(("request", "dba"), None)] * 3, 0.8)  # `db` is put off, and `dba` behind it
@given(
    st.lists(st.tuples(REQUESTS | EVICTIONS, st.none() | st.floats(0, 100)), max_size=9),
    st.sampled_from([0.0, 0.15, 0.3, 0.5, 0.8, 1.0]),
)
def test_cost_is_within_twice_the_optimum(
    trace: list[tuple[tuple[str, str], float | None]], ratio: float
) -> None:
    replay = Replay(ratio)
    for (kind, documents), returns in trace:
        if kind == "evict":
            replay.evict(documents)
        else:
            replay.request(documents, returns)
    best = optimum([event for event, _ in trace], ratio)
    assert replay.cost <= 2 * best + 1e-6
    assert replay.ledger.cost_tokens == pytest.approx(replay.cost)
    assert replay.ledger.optimum_tokens <= best + 1e-6


@given(
    st.lists(
        st.tuples(st.sampled_from(["ab", "abc", "ba", "c", "cd"]), st.none() | st.floats(0, 100)),
        max_size=60,
    ),
    st.sampled_from([0.1, 0.15, 0.3]),
    st.integers(100, 2000),
)
def test_cost_is_within_twice_the_optimum_on_long_traces(
    trace: list[tuple[str, float | None]], ratio: float, capacity_tokens: int
) -> None:
    replay = Replay(ratio, capacity_tokens=capacity_tokens, max_prefixes=5)
    for documents, returns in trace:
        replay.request(documents, returns)
    ledger = replay.ledger
    assert replay.cost <= 2 * ledger.optimum_tokens + 1e-6
    assert len(ledger) <= 5


def test_a_prefix_is_bought_when_its_rent_reaches_its_price() -> None:
    replay = Replay(0.25)
    bought = [replay.request("a").num_documents for _ in range(6)]
    assert bought == [0, 0, 0, 1, 1, 1]


def test_a_longer_prefix_is_bought_after_the_shorter_one() -> None:
    replay = Replay(0.25)
    counts = [replay.request(documents).num_documents for documents in ["ab", "ac"] * 5]
    assert counts[2:4] == [0, 1]
    assert counts[-1] == 2


def test_a_purchase_is_put_off_where_prefixes_did_not_return() -> None:
    ledger = RentLedger(capacity_tokens=1000)
    bought = [
        ledger.decide([conversation], [100], cached_tokens=0, ratio=0.25).num_documents
        for conversation in range(50)
        for _ in range(4)
    ]
    assert sum(bought[:40]) > 0, "the first ones are bought when their rent reaches the price"
    assert sum(bought[100:]) == 0
    again = [ledger.decide("a", [100], cached_tokens=0, ratio=0.25) for _ in range(40)]
    assert any(each.num_documents for each in again), "one that does return is bought yet"


def test_conversations_cost_little_more_than_renting_from_the_first_one_on() -> None:
    ledger = RentLedger()  # so large a cache that no phase ends
    rents = 0.0
    for conversation in range(40):
        for turn in range(7):
            kept = [f"{conversation}-{document}" for document in range(3)]
            new = [f"{conversation}-{turn}-{document}" for document in range(2)]
            ledger.decide([*kept, *new], [100] * 5, cached_tokens=0, ratio=0.15)
            rents += 0.15 * 500
    assert ledger.cost_tokens <= 1.02 * rents


def test_a_lost_prefix_is_rented_again_first() -> None:
    replay = Replay(0.5)
    assert [replay.request("a").num_documents for _ in range(2)] == [0, 1]
    replay.evict("a")
    assert [replay.request("a").num_documents for _ in range(2)] == [0, 1]


def test_an_expectation_advances_a_purchase_only_out_of_earlier_gains() -> None:
    replay = Replay(0.1)
    assert replay.request("d", 50.0).num_documents == 0
    for _ in range(9):
        replay.request("d")
    assert replay.ledger.balance > 0
    assert replay.request("c", 50.0).num_documents == 1  # 7 tokens are covered
    assert replay.request("a", 1.0).num_documents == 0  # too few returns


def test_memory_is_bounded_by_prefixes_and_by_the_cache() -> None:
    replay = Replay(0.1, capacity_tokens=150, max_prefixes=3)
    for documents in ("abcd", "bacd", "dcba"):
        replay.request(documents)
    assert len(replay.ledger) <= 3


def test_a_purchase_comes_earlier_where_prefixes_used_to_return() -> None:
    replay = Replay(0.1)
    for _ in range(30):
        replay.request("d")
    assert [replay.request("a").num_documents for _ in range(2)] == [0, 0]
    for documents in ("b", "c", "ab", "bd", "cb"):
        for _ in range(30):
            replay.request(documents)
    assert replay.request("dc").num_documents == 2
