"""Requests that wait at the same time, planned together against what the cache holds."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ragboost
from ragboost.config import Settings
from ragboost.types import Document, Request
from tests.integrity import check_index


def booster(**sections: Any) -> ragboost.Booster:
    return ragboost.Booster(Settings(**sections), count_tokens=lambda text: 10)


def request(*ids: int) -> Request:
    documents = tuple(Document(text=f"text {i}", id=str(i)) for i in ids)
    return Request("why?", documents)


def boost(
    made: ragboost.Booster, requests: list[Request], **options: Any
) -> list[tuple[list[object], int]]:
    """Send requests that wait: ids in prompt order, and the predicted cached tokens."""
    sent, left = [], list(requests)
    while left:
        at, planned = made.plan_next(left, budget_tokens=math.inf)
        request = left.pop(at)
        context = made.boost(request.query, request.documents, planned=planned, **options)
        ids = [document.id for document in context.documents]
        sent.append((ids, context.predicted_cached_tokens))
    return sent


def test_requests_of_a_window_share_a_prefix_that_neither_would_find_alone() -> None:
    made = booster()
    sent = boost(made, [request(1, 7, 8, 9), request(2, 9, 8, 7), request(5, 6)])
    together = [ids for ids, _ in sent if len(ids) == 4]
    assert together[0][:3] == together[1][:3]
    assert {*together[0][:3]} == {"7", "8", "9"}
    assert sorted(cached for _, cached in sent) == [0, 0, 30]
    check_index(made.index)


def test_a_request_that_arrives_is_expected_to_find_what_those_before_it_would_leave() -> None:
    made = booster()
    made.boost("q", request(3, 4, 5).documents)

    assert made.arrive(request(1, 2, 6), is_first=True) == 0
    assert made.arrive(request(7, 2, 1), is_first=False) == 20
    assert made.arrive(request(4, 8, 3), is_first=False) == 20, "the cache holds these"
    assert made.arrive(request(1, 2), is_first=True) == 0, "they are sent"
    assert made.cached_tokens(request(1, 2).documents) == 0, "and the cache is as it was"


def test_a_window_extends_what_the_cache_holds() -> None:
    made = booster()
    made.boost("q", request(3, 4, 5).documents)
    sent = boost(made, [request(5, 4, 3, 1), request(9, 5, 4, 3)])
    assert [ids[:3] for ids, _ in sent] == [["3", "4", "5"]] * 2
    assert [cached for _, cached in sent] == [30, 30]


def test_a_single_request_is_planned_as_boost_does_it_and_the_index_stays_as_it_is() -> None:
    made, plain = booster(), booster()
    for each in (made, plain):
        each.boost("q", request(3, 4, 5).documents)
    before = made.index.num_tokens
    _, plan = made.plan_next([request(1, 5, 4, 3)], budget_tokens=0)
    assert made.index.num_tokens == before
    documents = request(1, 5, 4, 3).documents
    planned = made.boost("q", documents, planned=plan)
    assert planned == plain.boost("q", documents)


@pytest.mark.parametrize("tail", ["relevance", "popularity"])
def test_what_is_planned_next_counts_as_cached_only_when_it_is_boosted(tail: str) -> None:
    made, plain = booster(ordering={"tail": tail}), booster(ordering={"tail": tail})
    waiting = [request(1, 7, 8), request(2, 8, 7)]
    for _ in range(3):  # clients that leave
        at, planned = made.plan_next(waiting, budget_tokens=1000)
    assert made.index.num_tokens == 0
    documents = waiting[at].documents
    sent = [each.boost("why?", documents, planned=planned) for each in (made, plain)]
    assert sent[0] == sent[1]
    assert made.cached_tokens(documents) == 30


def test_the_order_hint_of_a_planned_request_names_the_relevance_order() -> None:
    made = booster()
    left = [request(1, 7, 8), request(2, 8, 7)]
    while left:
        at, plan = made.plan_next(left, budget_tokens=math.inf)
        documents = left.pop(at).documents
        hint = made.boost("q", documents, planned=plan).hints[0].text
        first, second, third = [f"[Doc_{document.id}]" for document in documents]
        assert hint.index(first) < hint.index(second) < hint.index(third)


def test_a_plan_for_other_documents_is_not_used() -> None:
    made = booster()
    _, plan = made.plan_next([request(1, 2), request(2, 1)], budget_tokens=0)
    context = made.boost("q", request(3, 4).documents, planned=plan)
    assert [document.id for document in context.documents] == ["3", "4"]


def test_a_later_turn_ignores_its_plan() -> None:
    made = booster()
    made.boost("q", request(1, 2).documents, session="s")
    _, plan = made.plan_next([request(2, 3, 4), request(4, 3, 2)], budget_tokens=0)
    context = made.boost("q", request(2, 3, 4).documents, session="s", planned=plan)
    assert [document.id for document in context.documents] == ["3", "4"]


def test_the_most_relevant_documents_stay_last_in_a_window() -> None:
    sent = boost(booster(ordering={"keep_last": 1}), [request(1, 7, 8), request(2, 8, 7)])
    assert sorted(ids[-1] for ids, _ in sent) == ["1", "2"]
    assert sent[0][0][:2] == sent[1][0][:2]


@pytest.mark.parametrize(("tail", "expected"), [("relevance", "5467"), ("popularity", "5764")])
def test_a_window_orders_documents_behind_the_cached_prefix_as_the_tail_says(
    tail: str, expected: str
) -> None:
    made = booster(ordering={"tail": tail})
    for _ in range(20):
        boost(made, [request(5, 7, 6), request(5, 7, 8)])
    made.index.clear()
    made.boost("q", request(5).documents)
    sent = boost(made, [request(4, 6, 7, 5), request(1, 2)])
    assert "".join(str(each) for each in sent[0][0]) == expected


@pytest.mark.parametrize("tail", ["relevance", "popularity"])
def test_without_ordering_a_window_stays_as_it_is(tail: str) -> None:
    made = booster(ordering={"enabled": False, "tail": tail})
    sent = boost(made, [request(1, 7, 8), request(2, 8, 7)])
    assert [ids for ids, _ in sent] == [["1", "7", "8"], ["2", "8", "7"]]


def test_cached_tokens_predicts_reuse_and_changes_nothing() -> None:
    made = booster()
    made.boost("q", request(1, 2, 3).documents)
    before = repr(made.index)
    assert made.cached_tokens(request(9, 2, 1).documents) == 20
    assert repr(made.index) == before


lists = st.lists(st.lists(st.integers(0, 8), max_size=6), max_size=6)


@given(lists, st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_nothing_is_lost_or_doubled_whatever_waits(ids: list[list[int]], keep_last: int) -> None:
    made = booster(ordering={"keep_last": keep_last})
    left = [request(*each) for each in ids]
    while left:
        at, plan = made.plan_next(left, budget_tokens=math.inf)
        documents = left.pop(at).documents
        context = made.boost("q", documents, planned=plan)
        assert sorted(str(d.id) for d in context.documents) == sorted(
            {str(document.id) for document in documents}
        )
    check_index(made.index)
