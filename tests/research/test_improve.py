"""Ruin and recreate: never a loss, and better than the greedy clustering where that is wrong."""

from itertools import repeat

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.index.clustering import cluster
from ragboost.simulate import simulate
from research.improve import KeepImproving, cluster_longer

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2, "f": 5}
CONTEXTS = st.lists(st.lists(st.sampled_from(sorted(TOKENS)), max_size=6), max_size=14)


def steps(count: int) -> KeepImproving:
    left = repeat(True, count)
    return lambda: next(left, False)


def saved(contexts: list[list[str]], tree_prefixes: list[tuple[object, ...]]) -> int:
    orders = []
    for context, prefix in zip(contexts, tree_prefixes, strict=True):
        rest = [document for document in dict.fromkeys(context) if document not in prefix]
        orders.append([*prefix, *rest])
    return simulate(orders, TOKENS, capacity_tokens=None).cached_tokens


@settings(max_examples=100, deadline=None)
@given(contexts=CONTEXTS, count=st.integers(0, 40))
def test_a_search_loses_no_document_and_no_token(contexts: list[list[str]], count: int) -> None:
    greedy = cluster(contexts, TOKENS)
    improved = cluster_longer(contexts, TOKENS, keep_improving=steps(count))

    assert sorted(improved.leaves) == list(range(len(contexts)))
    for context, prefix in zip(contexts, improved.prefixes, strict=True):
        assert len(set(prefix)) == len(prefix)
        assert set(prefix) <= set(context)
    assert improved.saved_tokens >= greedy.saved_tokens
    assert saved(contexts, improved.prefixes) >= improved.saved_tokens


def random_contexts() -> tuple[list[list[int]], dict[int, int]]:
    rng = np.random.default_rng(3)
    contexts = [rng.choice(60, size=8, replace=False).tolist() for _ in range(60)]
    return contexts, dict.fromkeys(range(60), 100)


def test_a_search_saves_more_than_the_greedy_clustering() -> None:
    contexts, tokens = random_contexts()

    greedy = cluster(contexts, tokens)
    improved = cluster_longer(contexts, tokens, keep_improving=steps(2_000))

    assert improved.saved_tokens > 1.02 * greedy.saved_tokens


def test_equal_searches_give_equal_plans() -> None:
    contexts, tokens = random_contexts()

    first, second = (cluster_longer(contexts, tokens, keep_improving=steps(200)) for _ in range(2))

    assert first == second
