"""The index holds what reusing requests buy, and bought documents are in front."""

import pytest

from ragboost.booster import Booster
from ragboost.booster.context import Context
from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.config import Settings
from tests.integrity import check_index

LENGTHS = {"a": 100, "b": 200, "c": 300, "d": 400}
QUARTER = 0.25


def make_booster(**ordering: object) -> Booster:
    return Booster(
        Settings.model_validate({"ordering": {"keep_last": 0, **ordering}}),
        count_tokens=lambda text: LENGTHS.get(text, 5),
    )


def texts(context: Context) -> str:
    return "".join(document.text for document in context.documents)


def test_reused_documents_are_not_taken_for_cached_ones() -> None:
    booster = make_booster()
    context = booster.boost("", list("abc"), recompute_ratio=QUARTER)

    assert context.bought_tokens == 0
    assert context.index_entry is not None
    assert context.index_entry.num_exact == 0
    assert booster.index.num_nodes == 0
    assert booster.boost("", list("abc")).predicted_cached_tokens == 0


def test_documents_that_return_are_bought_and_stand_in_front() -> None:
    booster = make_booster()
    for other in "babda":
        last = booster.boost("", [other, "c"], recompute_ratio=QUARTER)
    assert texts(last)[0] == "c"
    assert last.bought_tokens == LENGTHS["c"]

    after = booster.boost("", list("bc"), recompute_ratio=QUARTER)
    assert texts(after)[0] == "c"
    assert after.predicted_cached_tokens == LENGTHS["c"]
    assert after.bought_tokens == 0
    check_index(booster.index)


def test_documents_behind_the_bought_ones_keep_their_relevance_order() -> None:
    booster = make_booster()
    for other in "babda":
        booster.boost("", [other, "c"], recompute_ratio=QUARTER)

    context = booster.boost("", list("dbca"), recompute_ratio=QUARTER)
    assert texts(context) == "cdba"
    assert texts(booster.boost("", list("dba"), recompute_ratio=QUARTER)) == "dba", "none is bought"


def test_with_chunk_reuse_the_most_relevant_document_stands_last_unless_told_otherwise() -> None:
    booster = make_booster(keep_last=None)
    for _ in range(4):
        assert texts(booster.boost("", list("acb"), recompute_ratio=QUARTER)) == "cba"
    assert texts(booster.boost("", list("dcb"), recompute_ratio=QUARTER)) == "cbd"
    assert texts(booster.boost("", list("bdc"), recompute_ratio=QUARTER)) == "cdb"
    assert texts(booster.boost("", list("db"), recompute_ratio=QUARTER)) == "bd"
    assert texts(booster.boost("", list("dcb"))) == "cbd", "all is computed exactly"
    check_index(booster.index)


@pytest.mark.parametrize(("hint_tokens", "is_hinted"), [(18, True), (19, False)])
def test_an_order_hint_costs_at_most_a_quarter_of_what_the_order_saves(
    hint_tokens: int, is_hinted: bool
) -> None:
    settings = Settings.model_validate({"ordering": {"keep_last": 0}})
    booster = Booster(settings, count_tokens=lambda text: LENGTHS.get(text, hint_tokens))
    for other in "babda":
        bought = booster.boost("", [other, "c"], recompute_ratio=QUARTER)
    assert texts(bought) == "ca"
    assert not bought.hints, "a purchase saves nothing yet"

    after = booster.boost("", list("bc"), recompute_ratio=QUARTER)
    assert texts(after) == "cb"
    assert bool(after.hints) == after.is_order_hinted == is_hinted, "300 tokens, each saves .25"


def test_what_the_engine_computed_for_want_of_chunks_is_cached() -> None:
    booster = make_booster()
    context = booster.boost("", list("ab"), recompute_ratio=QUARTER)
    booster.report_usage(context, prompt_tokens=300, cached_tokens=0, reused_tokens=0)
    assert booster.cached_tokens(list("ab")) == 300

    context = booster.boost("", list("cd"), recompute_ratio=QUARTER)
    booster.report_usage(context, prompt_tokens=700, cached_tokens=0, reused_tokens=525)
    assert booster.cached_tokens(list("cd")) == 0


def test_requests_that_are_computed_exactly_keep_their_order_and_leave_the_ledger_alone() -> None:
    with_reuse, without = make_booster(tail="relevance"), make_booster(tail="relevance")
    for _ in range(5):
        with_reuse.boost("", list("dc"), recompute_ratio=0.0)
    for documents in ("abcd", "dcba", "bd"):
        assert texts(with_reuse.boost("", list(documents))) == texts(
            without.boost("", list(documents))
        )
    assert with_reuse.rents.cost_tokens == 0


def test_tenants_share_neither_rents_nor_what_is_bought() -> None:
    tenants = Tenants(Settings())
    keys = [TenantKey.of({"model": "m"}, team=team) for team in ("a", "b")]
    keys.append(TenantKey.of({"model": "m", "cache_salt": "s"}, team="a"))
    first, *others = [tenants.get(key).booster("backend") for key in keys]
    for _ in range(6):
        bought = first.boost("", list("ab"), recompute_ratio=QUARTER)

    assert bought.predicted_cached_tokens > 0
    for booster in others:
        context = booster.boost("", list("ab"), recompute_ratio=QUARTER)
        assert (context.predicted_cached_tokens, context.bought_tokens) == (0, 0)
        assert len(booster.rents) == 2, "its own two prefixes"


@pytest.mark.parametrize(("tail", "expected"), [("popularity", "ca"), ("relevance", "ac")])
def test_what_is_bought_follows_the_configured_order_of_the_tail(tail: str, expected: str) -> None:
    booster = make_booster(tail=tail)
    for other in "babda":
        last = booster.boost("", [other, "c"], recompute_ratio=QUARTER)
    assert texts(last) == expected
