"""Where documents stand in a prompt, from lengths that are counted or estimated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragboost.booster.booster import Booster
from ragboost.booster.tenants import TenantKey
from ragboost.booster.tokens import TokenCounter
from ragboost.cache_sync.prompt_layout import PromptLayout
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
    known = layout([200, 200], is_measured=True)._replace(tokens_before=100, frames=(0, 0))
    assert known.ends == (300, 500)
    ends = (0, 80, 160, 240, 400, 480)
    counts = {n: known.resident(n, block_size=80).num_documents for n in ends}
    assert counts == {0: 0, 80: 0, 160: 0, 240: 1, 400: 1, 480: 2}
    longer = known._replace(tokens=(400, 400))
    assert longer.resident(720, block_size=80) == (1, 220)
