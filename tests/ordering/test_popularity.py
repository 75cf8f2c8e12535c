import pickle
import random
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.config import OrderingSettings
from ragboost.ordering import RecentContexts, make_order_policy

TOKENS = {"a": 300, "b": 400, "c": 100, "d": 600, "e": 200}
LONG = dict.fromkeys("abcde", 10_000)  # any order that contexts confirm is worth its hint
MIN_GAIN = 5 * 6  # tokens for each document of the request: five times its place in the hint
SETS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=5)


@settings(max_examples=150, deadline=None)
@given(contexts=st.lists(SETS, max_size=12), documents=SETS, prefix=SETS, window=st.integers(1, 5))
def test_an_order_takes_the_greatest_expected_saving_at_each_step_or_is_that_of_relevance(
    contexts: list[list[str]], documents: list[str], prefix: list[str], window: int
) -> None:
    recent = RecentContexts(window=window)
    for context in contexts:
        recent.add(context)
    prefix = [document for document in prefix if document not in documents]

    ordered = list(map(str, recent.order(documents, TOKENS, prefix=prefix)))

    inside = contexts[-window:]
    assert len(recent) == len(inside)
    assert sorted(ordered) == sorted(documents)
    greedy = by_greatest_saving(inside, documents, prefix)
    gain = saved(inside, greedy, prefix) - saved(inside, documents, prefix)
    is_worth_it = gain >= MIN_GAIN * len(prefix + documents)
    assert ordered == (greedy if is_worth_it and greedy != documents else documents)


def by_greatest_saving(
    contexts: list[list[str]], documents: list[str], prefix: list[str]
) -> list[str]:
    prior = {document: 8 * 0.85 * 0.95**rank for rank, document in enumerate(documents)}
    left, ordered = list(documents), list[str]()
    while left:
        held = [context for context in contexts if set(prefix + ordered) <= set(context)]
        if not held:
            return ordered + left
        counts = {d: sum(d in context for context in held) + prior[d] for d in left}
        best = max(left, key=lambda d: TOKENS[d] * counts[d] / (len(held) + 8 - counts[d]))
        left.remove(best)
        ordered.append(best)
    return ordered


def saved(contexts: list[list[str]], order: list[str], prefix: list[str]) -> int:
    """Tokens that contexts would find cached behind the prefix if they came now."""
    return sum(
        TOKENS[document]
        for context in contexts
        for place, document in enumerate(order)
        if {*prefix, *order[: place + 1]} <= set(context)
    )


def test_what_is_known_of_a_few_short_documents_is_not_worth_an_order_hint() -> None:
    recent = RecentContexts()
    for _ in range(6):
        recent.add("bc")

    assert recent.order("abc", dict.fromkeys("abc", 7)) == ["a", "b", "c"], "saves 84 tokens"
    assert recent.order("abc", dict.fromkeys("abc", 8)) == ["b", "c", "a"], "saves 96 tokens"


def test_any_saving_is_worth_an_order_of_which_no_hint_is_sent() -> None:
    recent = make_order_policy(OrderingSettings(), is_hinted=False)
    for _ in range(6):
        recent.add("bc")

    assert recent.order("abc", dict.fromkeys("abc", 1)) == ["b", "c", "a"]


def test_a_short_document_that_all_of_them_hold_precedes_a_long_one_that_half_of_them_hold() -> (
    None
):
    recent = RecentContexts()
    for context in ("ab", "a") * 50:
        recent.add(context)

    assert recent.order("ba", {"a": 100, "b": 1_000}) == ["a", "b"]


def test_documents_of_which_nothing_is_known_keep_their_order() -> None:
    recent = RecentContexts()
    recent.add("de")

    for documents in permutations("abc"):
        assert recent.order(documents, TOKENS) == list(documents)


def test_a_document_twice_in_a_context_is_forgotten_once() -> None:
    recent = RecentContexts(window=1)
    recent.add("aab")
    recent.add("c")

    assert recent.order("ac", LONG) == ["c", "a"]


def test_memory_does_not_grow_with_what_left_the_window() -> None:
    recent = RecentContexts(window=16)

    sizes = []
    for i in range(5_000):
        recent.add(range(3 * i, 3 * i + 3))
        sizes.append(len(pickle.dumps(recent)))

    assert len(recent) == 16
    assert sizes[-1] < 1.5 * sizes[16]


class CountedLength:
    """A length of 1,000 that counts how often a saving is computed from it."""

    num_uses = 0

    def __mul__(self, factor: float) -> float:
        CountedLength.num_uses += 1
        return 1_000 * factor

    __rmul__ = __mul__


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

    ordered = recent.order(mixed, dict.fromkeys(mixed, 1_000))

    assert sorted(map(str, ordered)) == sorted(mixed)
    assert [{str(document)[0] for document in ordered[at : at + 40]} for at in (0, 40, 80)] == [
        {"a"},
        {"b", "c"},
        {"b", "c"},
    ]
