"""Groups of waiting requests: each in one of them, and no two that would gain by merging."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index import ContextIndex
from ragboost.ordering.window import Group, Groups, Shared, WaitingContext

TOKENS = {document: 90 + 7 * i for i, document in enumerate("abcdefghij")}

contexts = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=6)


def lengths(documents: list[str]) -> list[int]:
    return [TOKENS[document] for document in documents]


def members(group: Group) -> list[Group]:
    """Return the requests of a group, and check what it says of its parts."""
    if not group.parts:
        return [group]
    first, second = group.parts
    assert first.parent is second.parent is group
    assert first.number < second.number < group.number
    assert set(group.documents) == set(first.documents) & set(second.documents)
    return [*members(first), *members(second)]


@given(cached=st.lists(contexts, max_size=6), window=st.lists(contexts, min_size=1, max_size=10))
@settings(max_examples=150, deadline=None)
def test_every_request_is_in_one_group_and_no_two_groups_would_gain_by_merging(
    cached: list[list[str]], window: list[list[str]]
) -> None:
    index = ContextIndex()
    for context in cached:
        index.insert(context, lengths(context))
    waiting = [WaitingContext.of(context, TOKENS) for context in window]
    groups = Groups(waiting, Shared.of(waiting), search=index.search)

    groups.merge()

    outermost = {id(leaf.chain()[0]): leaf.chain()[0] for leaf in groups.leaves}
    requests = [leaf for group in outermost.values() for leaf in members(group)]
    assert sorted(leaf.number for leaf in requests) == list(range(len(window)))
    for a, b in combinations(outermost.values(), 2):
        common = sorted({*map(str, a.documents)} & {*map(str, b.documents)})
        gain = sum(lengths(common)) + index.search(common, lengths(common)).cached_tokens
        assert gain <= a.cached_tokens + b.cached_tokens
    assert id(groups.longest_cached()) in outermost
