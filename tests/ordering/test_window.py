from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index import ContextIndex
from ragboost.ordering import RecentContexts, plan_window
from ragboost.simulate import PrefixCache

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2, "f": 5}
DOCUMENTS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=5)


@settings(max_examples=120, deadline=None)
@given(
    sent=st.lists(DOCUMENTS, max_size=6),
    waiting=st.lists(DOCUMENTS, max_size=8),
    capacity=st.none() | st.integers(1, 40),
)
def test_a_window_covers_every_request_and_document_once(
    sent: list[list[str]], waiting: list[list[str]], capacity: int | None
) -> None:
    index = ContextIndex(capacity_tokens=capacity)
    for context in sent:
        index.insert(context, [TOKENS[document] for document in context])

    plan = plan_window(index, waiting, TOKENS, recent=RecentContexts())

    assert sorted(plan.release_order) == list(range(len(waiting)))
    for at, order in zip(plan.release_order, plan.orders, strict=True):
        assert sorted(map(str, order)) == sorted(waiting[at])
    index.check_integrity()


def test_requests_that_share_documents_are_sent_one_after_another_with_these_first() -> None:
    waiting = ["axb", "pq", "bya", "qpr"]
    tokens = dict.fromkeys("abpqrxy", 10)

    plan = plan_window(ContextIndex(), waiting, tokens, recent=RecentContexts())

    cache = PrefixCache(tokens)
    assert sum(cache.request(order).cached_tokens for order in plan.orders) == 40


def test_a_longer_cached_prefix_is_not_given_up_for_a_group() -> None:
    index = ContextIndex()
    index.insert("abcd", (10,) * 4)
    tokens = dict.fromkeys("abcdxy", 10)

    plan = plan_window(index, ["dcbax", "xya"], tokens, recent=RecentContexts())

    orders = dict(zip(plan.release_order, plan.orders, strict=True))
    assert orders[0][:4] == tuple("abcd")
    assert orders[1][0] == "a"
