from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index.clustering import Linkage
from ragboost.ordering import plan_batch, release_order
from ragboost.simulate import simulate

linkages = pytest.mark.parametrize("linkage", get_args(Linkage))
CONTEXTS = st.lists(st.lists(st.integers(0, 9), max_size=6), max_size=20)
TOKENS = {document: 1 + document % 4 for document in range(10)}


@linkages
@settings(max_examples=80, deadline=None)
@given(contexts=CONTEXTS)
def test_a_plan_covers_every_context_and_document_once(
    linkage: Linkage, contexts: list[list[int]]
) -> None:
    plan = plan_batch(contexts, TOKENS, linkage=linkage)

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
    paper = plan_batch(contexts, tokens, linkage="distance")

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
