"""The index counts as evicted what requests in flight will evict, and removes nothing for it."""

import copy
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index import ContextIndex, EvictionForecast
from ragboost.index.eviction import TokenAges
from tests.integrity import check_index

SEQUENCE = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)
TOKENS = {document: 10 + 7 * document for document in range(7)}


def lengths(documents: list[int]) -> list[int]:
    return [TOKENS[document] for document in documents]


@settings(max_examples=80, deadline=None)
@given(st.lists(SEQUENCE, min_size=1, max_size=25), st.floats(0, 1), st.floats(0, 1))
def test_as_much_counts_as_cached_as_the_forecast_eviction_would_leave(
    sequences: list[list[int]], first: float, second: float
) -> None:
    index = ContextIndex()
    index.eviction_forecast = EvictionForecast()
    for sequence in sequences:
        index.insert(sequence, lengths(sequence))
    for share in (first, second, 1.0, second):  # the forecast moves both ways
        index.eviction_forecast.retained_share = share
        evicted = copy.deepcopy(index)
        evicted.eviction_forecast = None
        evicted.evict(index.num_tokens - int(index.num_tokens * share))
        for sequence in sequences:
            told = index.cached_prefix(sequence)
            assert told == evicted.cached_prefix(sequence)
            assert index.search(sequence, lengths(sequence)).cached_tokens >= told[1]
        check_index(index)
    # Nothing has left the tree, and a used sequence is retained.
    index.eviction_forecast.retained_share = 0.0
    index.insert(sequences[0], lengths(sequences[0]))
    check_index(index)
    index.eviction_forecast.retained_share = 1.0
    assert index.cached_prefix(sequences[0])[1] == sum(lengths(sequences[0]))


def test_an_insertion_without_use_keeps_its_age() -> None:
    index = ContextIndex()
    index.eviction_forecast = EvictionForecast()
    index.insert([0, 1], [100, 100])
    index.insert([2, 3], [100, 100])
    index.insert([0], [100], is_use=False)
    index.insert([0, 4], [100, 100], is_use=False)
    check_index(index)
    index.eviction_forecast.retained_share = 0.4
    assert index.cached_prefix([0, 1])[1] == 0
    assert index.cached_prefix([2, 3])[1] == 200


def test_a_forecast_skips_ticks_without_tokens() -> None:
    ages = TokenAges()
    for tick in range(1, 1000):
        ages.add(tick, 10)
        if tick < 990:
            ages.add(tick, -10)
    ages.expect_eviction(25)
    assert (ages.evict_through_tick, ages.partial_tokens) == (991, 5)
    assert [ages.retained_tokens(tick) for tick in (991, 992, 993)] == [0, 5, 10]
    ages.expect_eviction(0)
    assert ages.retained_tokens(990) == 10
    ages.expect_eviction(10_000)
    assert ages.retained_tokens(999) == 0


def batched(next_batch: int) -> EvictionForecast:
    forecast = EvictionForecast()
    forecast.update(1.0, next_batch, math.inf, is_batched=True)
    return forecast


def held(index: ContextIndex, documents: list[int]) -> tuple[int, int]:
    prefix = index.cached_prefix(documents)
    return prefix.num_cached, prefix.cached_tokens


def test_a_batch_does_not_see_what_it_computes_until_it_ends() -> None:
    index = ContextIndex()
    forecast = index.eviction_forecast = batched(next_batch=1)
    index.insert([0, 1], [100, 100])
    index.insert([2], [100])
    assert held(index, [0, 1]) == (0, 0)
    assert index.search([0, 1], [100, 100]).cached_tokens == 0
    forecast.next_batch += 1
    assert held(index, [0, 1]) == (2, 200)
    index.insert([3], [100])
    forecast.is_batched = False
    assert held(index, [3]) == (1, 100)


def test_an_expected_eviction_is_recomputed_and_hidden_from_the_same_batch() -> None:
    index = ContextIndex()
    index.eviction_forecast = batched(next_batch=1)
    index.record_leading([0, 1], [100, 100])
    index.set_resident([0, 1], [100, 100], num_documents=2)
    index.eviction_forecast.update(0.0, 2, math.inf, is_batched=True)
    assert index.record_leading([0, 1], [100, 100]).cached_tokens == 0
    index.eviction_forecast.retained_share = 1.0
    assert index.record_leading([0, 1], [100, 100]).cached_tokens == 0
    index.eviction_forecast.next_batch += 1
    assert index.record_leading([0, 1], [100, 100]).cached_tokens == 200
    check_index(index)


def test_a_request_without_room_in_a_batch_finds_what_that_batch_computes() -> None:
    index = ContextIndex()
    index.eviction_forecast = batched(next_batch=1)
    index.insert([0, 1], [100, 100])
    index.eviction_forecast.free_tokens = 200
    assert index.record_leading([0, 2], [100, 50]).cached_tokens == 0
    assert index.record_leading([0, 3], [100, 100]).cached_tokens == 100


def test_a_radix_tree_loses_nodes_whole_and_takes_a_split_for_a_use() -> None:
    index = ContextIndex()
    index.eviction_forecast = EvictionForecast()
    index.insert([0, 1], [100, 100])
    index.insert([2, 3], [100, 100])
    index.eviction_forecast.update(0.7, 1, math.inf, is_batched=False)
    assert held(index, [0, 1]) == (1, 80)
    index.eviction_forecast.is_batched = True
    index.eviction_forecast.next_batch = 2
    assert held(index, [0, 1]) == (0, 0)
    index.insert([0, 4], [100, 100])
    index.eviction_forecast.next_batch, index.eviction_forecast.retained_share = 3, 0.6
    assert held(index, [2, 3]) == (0, 0)
    assert held(index, [0, 1]) == (2, 200)
    check_index(index)


def test_reported_documents_are_visible_to_every_batch() -> None:
    index = ContextIndex()
    index.eviction_forecast = batched(next_batch=5)
    index.set_resident([0, 1], [100, 100], num_documents=2)
    assert held(index, [0, 1]) == (2, 200)
    index.insert([0, 2], [100, 100])
    index.set_resident([0, 1], [100, 100], num_documents=0)  # another's loss takes its prefix
    index.set_resident([0, 2], [100, 100], num_documents=2)
    assert held(index, [0, 2]) == (2, 200)
