from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.config import OrderingSettings, Settings
from ragboost.index import ContextIndex
from ragboost.ordering import Order, OrderPolicy, RecentContexts, order_documents
from tests.integrity import check_index

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2, "f": 5}
DOCUMENTS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=6).map("".join)


def ordering(**changes: Any) -> OrderingSettings:
    return Settings.model_validate({"ordering": changes}).ordering


def filled(*sequences: str) -> ContextIndex:
    index = ContextIndex()
    for sequence in sequences:
        index.insert(tuple(sequence), [TOKENS[document] for document in sequence])
    return index


def order(
    index: ContextIndex, documents: str, *, policy: OrderPolicy | None = None, **changes: Any
) -> tuple[str, Order]:
    lengths = [TOKENS[document] for document in documents]
    found = order_documents(index, documents, lengths, settings=ordering(**changes), policy=policy)
    ordered = "".join(documents[i] for i in found.permutation)
    if found.unmoved_tokens is not None:
        unmoved = order_documents(index, documents, lengths, settings=ordering(enabled=False))
        assert found.unmoved_tokens == unmoved.cached_tokens
    return ordered, found._replace(unmoved_tokens=None)


def expected(documents: str, permutation: tuple[int, ...], cached_tokens: int) -> Order:
    lengths = [TOKENS[document] for document in documents]
    return Order.of(documents, lengths, permutation, cached_tokens=cached_tokens)


def test_the_cached_prefix_comes_first_and_the_rest_keeps_its_order() -> None:
    ordered, found = order(filled("abc", "bd"), "fdbea")

    assert (ordered, found) == ("bdfea", expected("fdbea", (2, 1, 0, 3, 4), 10))


def test_without_anything_cached_nothing_moves() -> None:
    assert order(ContextIndex(), "cab") == ("cab", expected("cab", (0, 1, 2), 0))
    assert order(ContextIndex(), "") == ("", expected("", (), 0))
    assert order(filled("a"), "a") == ("a", expected("a", (0,), 3))


def test_ordering_switched_off_only_measures() -> None:
    index = filled("ab", "ca")

    assert order(index, "bac", enabled=False, keep_last=2) == ("bac", expected("bac", (0, 1, 2), 0))
    assert order(index, "abc", enabled=False)[1] == expected("abc", (0, 1, 2), 7)


def test_too_small_a_saving_does_not_move_documents() -> None:
    index = filled("ab", "ca")

    assert order(index, "bac", min_saved_tokens=7)[0] == "abc"
    assert order(index, "bac", min_saved_tokens=8)[0] == "bac"


def test_what_the_given_order_saves_is_not_counted_as_a_saving() -> None:
    index = filled("ab", "dc")

    assert order(index, "abcd", min_saved_tokens=0) == ("abcd", expected("abcd", (0, 1, 2, 3), 7))
    assert order(filled("ab", "dce"), "abcde", min_saved_tokens=2)[0] == "dceab"
    assert order(filled("ab", "dce"), "abcde", min_saved_tokens=3)[0] == "abcde"


def test_the_most_relevant_documents_come_last_the_best_one_at_the_end() -> None:
    assert order(filled("dc"), "abcd", keep_last=2)[0] == "dcba"
    assert order(ContextIndex(), "abcd", keep_last=9)[0] == "dcba"


def test_kept_documents_that_are_cached_are_counted() -> None:
    index = filled("dcba")

    assert order(index, "abcd", keep_last=2) == ("dcba", expected("abcd", (3, 2, 1, 0), 14))


def test_a_kept_document_is_not_moved_to_the_front_for_its_cache_entry() -> None:
    assert order(filled("ab"), "acb", keep_last=1)[0] == "cba"
    assert order(filled("cb"), "abc", keep_last=1)[0] == "cba"


def test_the_most_relevant_documents_come_last_even_if_the_given_order_is_cached_longer() -> None:
    assert order(filled("a"), "abcd", keep_last=2) == ("cdba", expected("abcd", (2, 3, 1, 0), 0))
    assert order(filled("abc"), "abc", keep_last=1)[0] == "bca"
    assert order(filled("b"), "acb", keep_last=1, min_saved_tokens=5)[0] == "cba"


def test_a_popular_tail_prefers_what_recent_requests_had_together() -> None:
    recent = RecentContexts()
    for context in ("ae",) * 240:
        recent.add(context)

    assert order(filled("a"), "cdea", policy=recent)[0] == "aedc"
    assert order(filled("ab"), "cdeba", policy=recent)[0] == "abcde", "none holds b"
    assert order(filled("a"), "cdea", policy=OrderPolicy())[0] == "acde"


@settings(max_examples=150, deadline=None)
@given(
    sent=st.lists(DOCUMENTS, max_size=12),
    request=DOCUMENTS,
    keep_last=st.integers(0, 3),
    min_saved_tokens=st.integers(0, 8),
    max_visits=st.sampled_from([1, 2, 100]),
    tail=st.sampled_from(["relevance", "popularity"]),
    evicted=st.integers(0, 10),
)
def test_an_order_is_a_permutation_that_saves_what_it_says(
    sent: list[str],
    request: str,
    keep_last: int,
    min_saved_tokens: int,
    max_visits: int,
    tail: str,
    evicted: int,
) -> None:
    recent = RecentContexts(window=4)
    index, policy = filled(*sent), recent if tail == "popularity" else OrderPolicy()
    index.max_visits = max_visits
    index.evict(evicted)
    for context in sent:
        recent.add(context)

    ordered, found = order(
        index,
        request,
        policy=policy,
        keep_last=keep_last,
        min_saved_tokens=min_saved_tokens,
    )

    asked = request[keep_last:] + request[:keep_last][::-1]
    unmoved = index.cached_prefix(tuple(asked)).cached_tokens
    assert sorted(found.permutation) == list(range(len(request)))
    measured = index.cached_prefix(tuple(ordered)).cached_tokens
    if max_visits == 100:
        assert measured == found.cached_tokens
    else:  # a search cut short may be luckier than it knows
        assert measured >= found.cached_tokens
    assert found.cached_tokens >= unmoved + (min_saved_tokens if ordered != asked else 0)
    check_index(index)
