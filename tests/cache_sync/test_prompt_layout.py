"""Where documents stand in a prompt, from lengths that are counted or estimated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.booster.booster import Booster
from ragboost.booster.tenants import TenantKey
from ragboost.booster.tokens import TokenCounter
from ragboost.cache_sync.prompt_layout import PromptLayout, locate_documents
from ragboost.types import Document
from tests.fakes.prefix_cache import tokenize

LENGTHS = st.lists(st.integers(1, 500), min_size=1, max_size=8)


def layout(lengths: list[int], *, is_measured: bool) -> PromptLayout:
    return PromptLayout(
        TenantKey("m", ""),
        tuple(range(len(lengths))),
        tuple(lengths),
        frames=(3,) * len(lengths),
        tokens_before=20,
        prompt_tokens=20 + sum(lengths) + 3 * len(lengths) + 30,
        is_measured=is_measured,
    )


@given(LENGTHS, st.booleans(), st.integers(0, 8), st.integers(100, 9000))
def test_what_is_cached_of_documents_is_found_again_in_the_prompt(
    lengths: list[int], is_measured: bool, num_cached: int, prompt_tokens: int
) -> None:
    known = layout(lengths, is_measured=is_measured).corrected(prompt_tokens)
    cached = sum(lengths[:num_cached])
    end = known.cached_prompt(cached)
    assert abs(known.cached_documents(end) - cached) <= 2 / known.scale + 1
    if 0 < num_cached <= len(lengths):
        assert abs(end - known.ends[num_cached - 1]) <= 1
    assert known.cached_documents(10**6) == sum(lengths)
    assert known.cached_prompt(0) == 0


def test_estimates_are_scaled_to_the_reported_prompt() -> None:
    known = layout([100, 100], is_measured=False)
    assert known.corrected(512).ends == (246, 452)
    assert known.corrected(10**9).scale == 4.0


@pytest.mark.parametrize(("reported", "start"), [(256, 20), (290, 20), (1256, 1020), (200, 20)])
def test_what_a_prompt_has_beyond_counted_documents_stands_before_them(
    reported: int, start: int
) -> None:
    known = layout([100, 100], is_measured=True)
    told = known.corrected(reported)
    assert (told.start, told.ends[1] - told.ends[0]) == (start, 103)
    assert told.slack(5000) < known.corrected(256).slack(5000) + 1 < 16


def test_tokens_of_labels_and_hints_are_not_taken_for_tools_before_the_documents() -> None:
    counter = TokenCounter(lambda text: len(tokenize(text)))
    documents = [Document(f"number {i} says so and so", id=100 + i) for i in range(20)]
    booster = Booster(tokens=counter)
    booster.boost("why?", documents)
    context = booster.boost("why?", [*documents[10:], *documents[:10]])
    assert context.hints
    known = PromptLayout.of(
        context,
        TenantKey("m", ""),
        prompt_prefix="",
        bytes_before=0,
        bytes_behind=0,
        is_measured=True,
        counter=counter,
    )
    num_tokens = len(tokenize(context.render()))
    assert known.corrected(num_tokens + 8).unknown_tokens == 0
    assert known.corrected(num_tokens + 500).unknown_tokens > 400


def test_a_document_counts_as_cached_without_the_block_that_it_shares_with_the_next() -> None:
    known = layout([20, 20], is_measured=True)._replace(
        tokens_before=10, frames=(0, 0), exact_ends=(30, 50)
    )
    counts = {n: known.resident(n, block_size=8).num_documents for n in (0, 8, 16, 24, 40, 48, 56)}
    assert counts == {0: 0, 8: 0, 16: 0, 24: 1, 40: 1, 48: 2, 56: 2}
    longer = known._replace(tokens=(40, 40), exact_ends=(50, 90))
    assert longer.resident(72, block_size=8) == (1, 22)


def test_documents_are_found_although_tokens_at_their_borders_merged() -> None:
    first, second = list(range(100, 120)), list(range(200, 212))
    prompt = [1, 2, 99, *first[1:-1], 77, *second[1:], 3, 4]
    assert locate_documents(prompt, [first, second]) == (22, 33)


def test_the_search_stops_at_the_first_document_that_is_not_there() -> None:
    prompt = [*range(10), *range(20, 30)]
    assert locate_documents(prompt, [list(range(10)), [50] * 9, list(range(20, 30))]) == (10,)


def test_a_run_is_only_found_at_the_border_of_a_token() -> None:
    assert locate_documents([256, 1, 5], [[1]], margin=0) == (2,)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), max_size=5))
def test_documents_that_follow_each_other_are_found_in_order(documents: list[list[int]]) -> None:
    prompt = [token for ids in documents for token in ids]
    ends = locate_documents(prompt, documents, margin=0)
    assert len(ends) == len(documents)
    assert list(ends) == sorted(ends)
