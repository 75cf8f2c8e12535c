import pickle
import random
from itertools import permutations
from typing import Any

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
    prior = {document: 8 * 0.85 * 0.95**rank for rank, document in enumerate(documents)}
    for i, document in enumerate(ordered):
        held = [context for context in inside if before <= set(context)]
        share = {
            d: (sum(d in context for context in held) + prior[d]) / (len(held) + 8)
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


class CountedLength:
    """A length of 1 that counts how often a saving is computed from it."""

    num_uses = 0

    def __rmul__(self, odds: float) -> float:
        CountedLength.num_uses += 1
        return odds


@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
def test_the_work_for_a_request_grows_with_its_documents_not_with_pairs_of_them(
    share: float,
) -> None:
    rng = random.Random(0)
    work = []
    for num_documents in (100, 800):
        recent = RecentContexts()
        for _ in range(500):
            recent.add([i for i in range(num_documents) if rng.random() < share])
        lengths: Any = dict.fromkeys(range(num_documents), CountedLength())
        CountedLength.num_uses = 0
        assert len(set(recent.order(range(num_documents), lengths))) == num_documents
        work.append(CountedLength.num_uses)

    assert work[1] < 12 * work[0]  # of pairs there are 64 times as many
    assert work[1] < 30 * 800


def test_of_a_long_list_the_documents_that_came_together_stay_together() -> None:
    recent = RecentContexts()
    topics = [[f"{topic}{i}" for i in range(40)] for topic in "abc"]
    for at in range(60):
        recent.add(topics[at % 3])
    mixed = [document for row in zip(*topics, strict=True) for document in row]

    ordered = recent.order(mixed, dict.fromkeys(mixed, 7))

    assert sorted(map(str, ordered)) == sorted(mixed)
    assert [{str(document)[0] for document in ordered[at : at + 40]} for at in (0, 40, 80)] == [
        {"a"},
        {"b", "c"},
        {"b", "c"},
    ]
