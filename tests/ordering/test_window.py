"""Windows of waiting requests, planned against the cached prefixes."""

import math
from collections.abc import Hashable

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index import ContextIndex
from ragboost.ordering import RecentContexts, plan_next
from tests.integrity import check_index

TOKENS = dict.fromkeys("abcdefghij", 100)

contexts = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=6)
Plan = list[tuple[int, tuple[Hashable, ...]]]


def plan_all(
    index: ContextIndex,
    window: list[list[str]],
    tokens: dict[str, int],
    recent: RecentContexts | None = None,
) -> Plan:
    """Send a window, one request after another: positions and orders."""
    sent: Plan = []
    left = list(range(len(window)))
    while left:
        waiting = [window[i] for i in left]
        plan = plan_next(index, waiting, tokens, policy=recent, budget_tokens=math.inf)
        at, order, _ = plan
        index.insert(order, [tokens[str(document)] for document in order])
        if recent is not None:
            recent.add(order)
        sent.append((left.pop(at), order))
    return sent


@given(windows=st.lists(st.lists(contexts, max_size=8), max_size=4))
@settings(max_examples=60, deadline=None)
def test_a_plan_holds_every_request_once_with_its_own_documents(
    windows: list[list[list[str]]],
) -> None:
    index, recent = ContextIndex(capacity_tokens=1500), RecentContexts(window=16)
    for window in windows:
        plan = plan_all(index, window, TOKENS, recent)
        check_index(index)
        assert sorted(position for position, _ in plan) == list(range(len(window)))
        for position, order in plan:
            assert sorted(map(str, order)) == sorted(window[position])


@given(windows=st.lists(st.lists(contexts, max_size=6), max_size=3))
@settings(max_examples=30, deadline=None)
def test_the_same_windows_give_the_same_plans(windows: list[list[list[str]]]) -> None:
    plans = []
    for _ in range(2):
        index, recent = ContextIndex(), RecentContexts(window=16)
        plans.append([plan_all(index, window, TOKENS, recent) for window in windows])
    assert plans[0] == plans[1]


def test_requests_that_share_documents_start_alike_and_follow_each_other() -> None:
    window = [list("abx"), list("cdj"), list("yba"), list("djc")]
    tokens = dict.fromkeys("abcdjxy", 100)
    plan = plan_all(ContextIndex(), window, tokens, RecentContexts())
    orders = dict(plan)
    assert orders[0][:2] == orders[2][:2]
    assert orders[1] == orders[3]
    places = [[position for position, _ in plan].index(i) for i in (0, 2)]
    assert abs(places[0] - places[1]) == 1


def test_a_group_does_not_give_up_longer_cached_prefixes_than_it_gains() -> None:
    index = ContextIndex()
    for context in ("pqr", "stu"):
        index.insert(tuple(context), (100, 100, 100))
    window = [list("pqra"), list("stua")]
    tokens = dict.fromkeys("pqrstua", 100)
    orders = dict(plan_all(index, window, tokens, RecentContexts()))
    assert orders[0][:3] == tuple("pqr")
    assert orders[1][:3] == tuple("stu")


def test_a_cached_prefix_inside_a_group_comes_first() -> None:
    index = ContextIndex()
    index.insert(("b", "a"), (100, 100))
    window = [list("cab"), list("dba")]
    plan = plan_all(index, window, TOKENS, RecentContexts())
    assert all(order[:2] == ("b", "a") for _, order in plan)


@given(window=st.lists(contexts, min_size=1, max_size=8), budget=st.integers(0, 600))
@settings(max_examples=60, deadline=None)
def test_planning_one_by_one_sends_every_request_once_and_keeps_the_budget(
    window: list[list[str]], budget: int
) -> None:
    index, recent = ContextIndex(), RecentContexts(window=16)
    while window:
        plan = plan_next(index, window, TOKENS, policy=recent, budget_tokens=budget)
        check_index(index)
        at, order, cached = plan
        assert sorted(map(str, order)) == sorted(window[at])
        assert at == 0 or 100 * len(order) - cached <= budget
        del window[at]


def test_the_request_with_the_longest_cached_prefix_is_next_if_the_first_one_can_wait() -> None:
    index = ContextIndex()
    index.insert(("a", "b", "c"), (100, 100, 100))
    window = [list("xyz"), list("cbaj")]
    tokens = dict.fromkeys("abcjxyz", 100)
    assert plan_next(index, window, tokens, budget_tokens=99).position == 0
    plan = plan_next(index, window, tokens, budget_tokens=100)
    assert (plan.position, plan.cached_tokens) == (1, 300)


def test_a_request_that_goes_first_prepares_the_prefix_of_those_that_wait() -> None:
    window = [list("xab"), list("bay"), list("baz")]
    tokens = dict.fromkeys("abxyz", 100)
    plan = plan_next(ContextIndex(), window, tokens, budget_tokens=0)
    assert plan.position == 0
    assert set(plan.order[:2]) == {"a", "b"}
