"""Ends of documents in a prompt, and how many of them a number of tokens covers."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.cache_sync.documents import (
    DocumentTracker,
    ResidentContext,
    document_ends,
    locate_documents,
)
from ragboost.cache_sync.prefix_mirror import Changes


def test_ends_add_up_behind_what_stands_before() -> None:
    assert document_ends([10, 5, 7], tokens_before=3) == (13, 18, 25)
    assert document_ends([10, 10, 10], tokens_before=2, scale=1.25) == (14, 27, 40)
    assert document_ends([]) == ()


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


def test_changes_of_requests_become_numbers_of_leading_documents() -> None:
    tracker = DocumentTracker()
    tracker.sent("a", ["d1", "d2"], ends=(30, 50), tokens_before=10)
    tracker.sent("b", ["d3"], ends=(20,))
    assert tracker.read(Changes({"a": 40, "b": 64, "else": 5}), block_size=8) == [
        ResidentContext("a", ("d1", "d2"), 1, 30),
        ResidentContext("b", ("d3",), 1, 20),
    ]
    assert tracker.read(Changes({"a": 0}), block_size=8) == [
        ResidentContext("a", ("d1", "d2"), 0, 0)
    ]
    assert tracker.resident("a", 48, block_size=8) is None  # nothing is left, so it is forgotten


def test_a_document_counts_without_the_block_that_it_shares_with_the_next() -> None:
    tracker = DocumentTracker()
    tracker.sent("a", ["d1", "d2"], ends=(30, 50), tokens_before=10)
    for tokens, count, length in ((16, 0, 6), (24, 1, 20), (40, 1, 30), (48, 2, 40), (56, 2, 40)):
        context = tracker.resident("a", tokens, block_size=8)
        assert context is not None
        assert (context.num_resident, context.resident_tokens) == (count, length)


def test_documents_without_a_known_end_are_left_out() -> None:
    tracker = DocumentTracker()
    tracker.sent("a", ["d1", "d2"], ends=(30,))
    assert tracker.resident("a", 100, block_size=16) == ResidentContext("a", ("d1",), 1, 30)


def test_the_oldest_requests_are_forgotten_first() -> None:
    tracker = DocumentTracker(max_requests=2)
    for name in "abc":
        tracker.sent(name, ["d"], ends=(1,))
    assert len(tracker) == 2
    assert tracker.resident("a", 1, block_size=1) is None
