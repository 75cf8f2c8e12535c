"""Reports of an engine correct the Booster's index; what they do not confirm is removed."""

from threading import RLock

import pytest

from ragboost import Booster
from ragboost.booster.context import Context
from ragboost.booster.residency import Residency
from ragboost.config import IndexSettings, Settings
from ragboost.index import ContextIndex
from ragboost.types import Document, Request
from tests.eventually import eventually
from tests.integrity import check_index

DOCUMENTS = {name: Document(name * 4000, id=name) for name in "abcdef"}  # 1000 tokens each


def boost(booster: Booster, names: str) -> Context:
    return booster.boost("?", [DOCUMENTS[name] for name in names])


def answer(booster: Booster, context: Context, cached: int) -> None:
    booster.report_usage(context, prompt_tokens=1000 * len(context.documents), cached_tokens=cached)
    check_index(booster.index)


def cached(booster: Booster, names: str) -> int:
    return booster.cached_tokens([DOCUMENTS[name] for name in names])


def test_a_missing_prefix_takes_with_it_what_was_not_used_since() -> None:
    booster = Booster()
    for names in ("ab", "cd", "ef"):
        answer(booster, boost(booster, names), 0)
    answer(booster, boost(booster, "cd"), 0)
    assert [cached(booster, names) for names in ("ab", "cd", "ef")] == [0, 2000, 2000]


def test_a_prefix_that_another_request_was_computing_says_nothing() -> None:
    booster = Booster()
    answer(booster, boost(booster, "ab"), 0)
    first, second = boost(booster, "cd"), boost(booster, "cd")
    answer(booster, second, 0)
    answer(booster, first, 0)
    assert cached(booster, "ab") == 2000


def test_a_small_shortfall_says_nothing() -> None:
    booster = Booster()
    for names in ("ab", "cd"):
        answer(booster, boost(booster, names), 0)
    answer(booster, boost(booster, "cd"), 1900)
    assert cached(booster, "ab") == 2000


def test_a_length_counted_after_its_document_was_cached_is_no_shortfall() -> None:
    booster = Booster()
    booster.tokens.is_counted = True
    for names in ("ab", "cd"):  # estimates: 1000 tokens each
        answer(booster, boost(booster, names), 0)
    for wanted in booster.tokens.take_wanted(10):
        booster.tokens.learn(wanted.key, 600)
    context = boost(booster, "cd")
    booster.report_usage(
        context, prompt_tokens=1210, cached_tokens=1200, cached_document_tokens=1195
    )
    assert cached(booster, "ab") > 0


@pytest.mark.parametrize("is_planned", [False, True])
def test_a_single_request_corrects_the_index_planned_or_not(is_planned: bool) -> None:
    booster = Booster()
    for names in ("ab", "cd", "ef"):
        answer(booster, boost(booster, names), 0)
    documents = [DOCUMENTS[name] for name in "cd"]
    _, planned = booster.plan_next([Request("?", tuple(documents))], budget_tokens=0)
    context = booster.boost("?", documents, planned=planned if is_planned else None)
    answer(booster, context, 0)
    assert [cached(booster, names) for names in ("ab", "cd", "ef")] == [0, 2000, 2000]


def test_a_failed_request_leaves_what_was_there_before() -> None:
    booster = Booster()
    answer(booster, boost(booster, "ab"), 0)
    context = boost(booster, "abc")
    assert context.index_entry is not None
    booster.residency.failed(context.index_entry)
    check_index(booster.index)
    assert [cached(booster, names) for names in ("abc", "c")] == [2000, 0]


def test_while_events_are_exact_only_what_they_confirm_stays() -> None:
    booster = Booster()
    booster.residency.follow(is_exact=True, capacity_tokens=1500)
    first, second = boost(booster, "ab"), boost(booster, "abc")
    assert cached(booster, "abc") == 3000  # expected, and beyond the capacity
    assert first.index_entry is not None
    assert second.index_entry is not None
    booster.residency.set_resident(
        first.index_entry.documents, first.index_entry.tokens, num_documents=2
    )
    booster.residency.drop_unconfirmed(second.index_entry.documents)
    check_index(booster.index)
    assert cached(booster, "abc") == 2000
    booster.residency.follow(is_exact=False, capacity_tokens=1500)
    assert booster.index.num_tokens == 1500


@pytest.mark.parametrize("num_confirmed", [0, 1, 2])
def test_a_sequence_is_taken_back_to_its_confirmed_part(num_confirmed: int) -> None:
    booster = Booster()
    booster.residency.follow(is_exact=True, capacity_tokens=None)
    context = boost(booster, "ab")
    assert context.index_entry is not None
    documents, tokens = context.index_entry.documents, context.index_entry.tokens
    booster.residency.set_resident(documents, tokens, num_documents=num_confirmed)
    boost(booster, "ab")
    booster.residency.drop_unconfirmed(documents)
    check_index(booster.index)
    assert booster.index.num_tokens == 1000 * num_confirmed


def test_a_small_shortfall_is_evidence_where_lengths_are_counted() -> None:
    booster = Booster(count_tokens=lambda text: len(text) // 4)
    for names in ("ab", "cd"):
        answer(booster, boost(booster, names), 0)
    answer(booster, boost(booster, "cd"), 1700)
    assert [cached(booster, names) for names in ("ab", "cd")] == [0, 2000]


def test_a_prefix_unused_for_its_time_to_live_expires() -> None:
    now = 0.0
    index, lock = ContextIndex(), RLock()
    residency = Residency(index, lock, ttl_s=300, clock=lambda: now)

    def use(name: str) -> None:
        residency.expire()
        residency.dispatched(index.record_leading([name], [100]))

    use("a")
    now = 100.0
    use("b")
    now = 299.0
    use("a")
    residency.expire()
    assert index.num_tokens == 200
    now = 410.0
    residency.expire()
    assert [index.cached_prefix([name])[1] for name in "ab"] == [100, 0]
    residency.follow(is_exact=True, capacity_tokens=None)
    now = 10_000.0
    residency.expire()
    assert index.num_tokens == 100  # events say what is there
    check_index(index)


def test_uses_in_quick_succession_are_kept_together_and_expire_late_not_early() -> None:
    now = 0.0
    index = ContextIndex()
    residency = Residency(index, RLock(), ttl_s=64, clock=lambda: now)
    for number in range(1000):
        now = number * 0.1
        residency.expire()
        residency.dispatched(index.record_leading([number], [1]))
    left = []
    assert 640 <= index.num_tokens <= 660
    for number in range(1000, 1700):
        now = number * 0.1
        residency.expire()
        left.append(index.num_tokens)
    assert left[-1] == 0
    assert len(set(left)) <= 66


def test_a_setting_gives_the_time_to_live() -> None:
    booster = Booster(Settings(index=IndexSettings(ttl_s=0.05)))
    boost(booster, "ab")
    eventually(lambda: cached(booster, "ab"), equals=0)
