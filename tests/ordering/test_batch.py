from collections.abc import Callable
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.batch.simulate import simulate
from ragboost.ordering import BatchPlan, plan_batch
from research.distance import plan_by_distance, release_order

plans = pytest.mark.parametrize("plan_of", [plan_batch, plan_by_distance])
CONTEXTS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20)
PATHS = st.lists(st.lists(st.integers(0, 3), max_size=4).map(tuple), max_size=20)
TOKENS = {document: 1 + document % 4 for document in range(10)}


@plans
@settings(max_examples=80, deadline=None)
@given(contexts=CONTEXTS)
def test_a_plan_covers_every_context_and_document_once(
    plan_of: Callable[..., BatchPlan], contexts: list[list[int]]
) -> None:
    plan = plan_of(contexts, TOKENS)

    assert sorted(plan.release_order) == list(range(len(contexts)))
    assert len(plan.search_paths) == len(contexts)
    for context, permutation in zip(contexts, plan.permutations, strict=True):
        assert sorted(permutation) == list(range(len(context)))
        first = [context.index(document) for document in dict.fromkeys(context)]
        assert set(permutation[: len(first)]) == set(first)


def test_the_savings_order_is_depth_first_and_the_papers_is_by_path() -> None:
    contexts = [[1, 2, 3], [5, 6], [1, 2, 4], [1, 7], [6, 5, 8]]
    tokens = dict.fromkeys(range(10), 1)

    savings = plan_batch(contexts, tokens)
    paper = plan_by_distance(contexts, tokens)

    by_path = sorted(range(5), key=savings.search_paths.__getitem__)
    assert list(savings.release_order) == by_path
    assert savings.saved_tokens == paper.saved_tokens == 5
    assert list(paper.release_order) == release_order(paper.search_paths)


def test_a_depth_first_release_needs_room_for_one_way_through_the_tree_only() -> None:
    contexts = [[group, group * 10 + i % 3, 1_000 + i] for i in range(90) for group in (7, 8, 9)]
    tokens = dict.fromkeys({d for context in contexts for d in context}, 1)
    plan = plan_batch(contexts, tokens)

    orders = [[contexts[at][i] for i in plan.permutations[at]] for at in plan.release_order]

    assert simulate(orders, tokens, capacity_tokens=3).cached_tokens == plan.saved_tokens


@settings(max_examples=200, deadline=None)
@given(PATHS)
def test_groups_stay_together_longest_first_in_the_order_of_their_first_request(
    paths: list[tuple[int, ...]],
) -> None:
    order = release_order(paths)

    assert sorted(order) == list(range(len(paths)))
    groups = [
        list(members)
        for _, members in groupby(order, key=lambda i: paths[i][0] if paths[i] else (i,))
    ]
    starts = [paths[members[0]][:1] or (members[0], "alone") for members in groups]
    assert len(set(starts)) == len(starts)
    assert [min(members) for members in groups] == sorted(min(members) for members in groups)
    for members in groups:
        assert members == sorted(members, key=lambda i: (-len(paths[i]), paths[i], i))


def test_longer_common_parts_are_adjacent() -> None:
    paths = [(0, 1, 0), (0, 2, 0), (0, 1, 1), (0, 2, 0), (0,)]

    assert release_order(paths) == [0, 2, 1, 3, 4]


def test_requests_that_share_nothing_keep_their_places() -> None:
    assert release_order([(), (1,), (), (0,), (1, 0)]) == [0, 4, 1, 2, 3]
    assert release_order([]) == []
