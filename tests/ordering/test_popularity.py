import pickle
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.ordering import RecentContexts

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2}
SETS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=5)


@settings(max_examples=150, deadline=None)
@given(contexts=st.lists(SETS, max_size=12), documents=SETS, prefix=SETS, window=st.integers(1, 5))
def test_each_step_takes_the_greatest_expected_saving_of_window_and_relevance(
    contexts: list[list[str]], documents: list[str], prefix: list[str], window: int
) -> None:
    recent = RecentContexts(window=window)
    for context in contexts:
        recent.add(context)
    inside = contexts[-window:]
    prefix = [document for document in prefix if document not in documents]

    ordered = list(map(str, recent.order(documents, TOKENS, prefix=prefix)))

    assert len(recent) == len(inside)
    assert sorted(ordered) == sorted(documents)
    before = set(prefix)
    prior = {document: 5 * 0.85 * 0.95**rank for rank, document in enumerate(documents)}
    for i, document in enumerate(ordered):
        held = [context for context in inside if before <= set(context)]
        share = {
            d: (sum(d in context for context in held) + prior[d]) / (len(held) + 5)
            for d in ordered[i:]
        }
        savings = {d: p / (1 - p) * TOKENS[d] for d, p in share.items()}
        assert savings[document] == pytest.approx(max(savings.values()))
        before.add(document)


def test_a_short_document_that_all_of_them_hold_precedes_a_long_one_that_half_of_them_hold() -> (
    None
):
    recent = RecentContexts()
    for context in ("ab", "a") * 50:
        recent.add(context)

    assert recent.order("ba", {"a": 10, "b": 100}) == ["a", "b"]


def test_without_recent_contexts_documents_of_equal_length_keep_their_order() -> None:
    recent = RecentContexts()

    for documents in permutations("abc"):
        assert recent.order(documents, dict.fromkeys("abc", 7)) == list(documents)


def test_a_document_twice_in_a_context_is_forgotten_once() -> None:
    recent = RecentContexts(window=1)
    recent.add("aab")
    recent.add("c")

    assert recent.order("ac", {"a": 1, "c": 1}) == ["c", "a"]


def test_memory_does_not_grow_with_what_left_the_window() -> None:
    recent = RecentContexts(window=16)

    sizes = []
    for i in range(5_000):
        recent.add(range(3 * i, 3 * i + 3))
        sizes.append(len(pickle.dumps(recent)))

    assert len(recent) == 16
    assert sizes[-1] < 1.5 * sizes[16]
