"""The worked examples of the RAGBoost paper: Figures 4 to 6 and contexts A to D."""

import numpy as np
import pytest

from ragboost.config import Settings
from ragboost.index import ContextIndex
from ragboost.index.clustering import ClusterTree
from ragboost.ordering import order_documents
from research.distance import (
    cluster_by_distance,
    context_distance,
    plan_by_distance,
    release_order,
)
from tests.index.paths import traverse
from tests.integrity import check_index

C1, C2, C3 = (2, 1, 3), (2, 6, 1), (4, 1, 0)
C6, C7, C8 = (2, 1, 4), (5, 7, 8), (1, 2, 9)
ONE_TOKEN = dict.fromkeys(range(10), 1)


def figure_4() -> ClusterTree:
    return cluster_by_distance([C1, C2, C3], ONE_TOKEN)


def figure_4_index() -> ContextIndex:
    """The initial contexts as ordered by their tree, inserted as they are sent."""
    index = ContextIndex()
    plan = plan_by_distance([C1, C2, C3], ONE_TOKEN)
    for at in plan.release_order:
        context = (C1, C2, C3)[at]
        index.insert([context[i] for i in plan.permutations[at]], (1, 1, 1))
    return index


def arrive(index: ContextIndex, context: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Search, order and insert a request: its new order and its search path."""
    order = order_documents(index, context, (1, 1, 1), settings=Settings().ordering)
    ordered = tuple(context[i] for i in order.permutation)
    return ordered, index.insert(ordered, (1, 1, 1)).search_path


def test_figure_4_virtual_nodes_are_sorted_intersections() -> None:
    tree = figure_4()

    assert tree.prefixes == [(1, 2), (1, 2), (1,)]  # C4 below C5 twice, C5
    assert tree.search_paths == [(0, 0, 0), (0, 0, 1), (0, 1)]
    assert tree.leaves == [0, 1, 2]
    assert tree.saved_tokens == 3


def test_figure_4_tree_is_the_tree_of_the_prefix_cache() -> None:
    index = figure_4_index()

    assert [(node.context, node.search_path) for node in index] == [
        ((1,), (0,)),
        ((1, 2), (0, 0)),
        ((1, 2, 3), (0, 0, 0)),
        ((1, 2, 6), (0, 0, 1)),
        ((1, 4, 0), (0, 1)),
    ]


@pytest.mark.parametrize("max_visits", [2, 1_000])  # 2: the greedy descent to C4
def test_figure_5_search_stops_at_the_best_match(max_visits: int) -> None:
    index = figure_4_index()
    index.max_visits = max_visits

    match = index.search(C6, (1, 1, 1))

    assert (match.documents, match.node.search_path) == ((1, 2), (0, 0))
    assert index.search(C7, (1, 1, 1)).node is index.root
    assert index.search(C8, (1, 1, 1)).node.search_path == (0, 0)


def test_figure_5_new_contexts_follow_the_matched_prefix() -> None:
    index = figure_4_index()

    assert arrive(index, C6) == ((1, 2, 4), (0, 0, 2))
    assert arrive(index, C7) == ((5, 7, 8), (1,))
    assert arrive(index, C8) == ((1, 2, 9), (0, 0, 3))
    assert traverse(index, (0, 0, 0)).context == (1, 2, 3)
    check_index(index)


def test_figure_6_requests_with_a_common_prefix_are_released_together() -> None:
    index = figure_4_index()
    paths = {"C3": (0, 1)}
    for name, context in (("C6", C6), ("C7", C7), ("C8", C8)):
        paths[name] = arrive(index, context)[1]
    waiting = ["C6", "C3", "C7", "C8"]

    order = release_order([paths[name] for name in waiting])

    assert [waiting[i] for i in order] == ["C6", "C8", "C3", "C7"]


def distance(a: tuple[int, ...], b: tuple[int, ...], *, alpha: float = 0.001) -> float:
    rows = [np.array([context], dtype=np.int32) for context in (a, b)]
    return float(context_distance(rows[0], rows[1], alpha=alpha)[0])


A, B, C, D = (3, 5, 1, 7), (2, 6, 3, 5), (3, 5, 8, 9), (2, 6, 4, 0)


@pytest.mark.parametrize("alpha", [0.001, 0.01])
def test_equal_overlap_is_nearer_where_positions_agree(alpha: float) -> None:
    assert distance(B, D, alpha=alpha) == pytest.approx(0.5)
    assert distance(A, C, alpha=alpha) == pytest.approx(0.5)
    assert distance(A, B, alpha=alpha) == pytest.approx(0.5 + 2 * alpha)
    assert distance(B, C, alpha=alpha) == pytest.approx(0.5 + 2 * alpha)


def test_without_positions_equal_overlap_is_equally_near() -> None:
    assert {distance(*pair, alpha=0.0) for pair in ((A, B), (B, C), (B, D))} == {0.5}


@pytest.mark.parametrize("alpha", [0.001, 0.01])
def test_one_more_common_document_outweighs_every_position(alpha: float) -> None:
    """For lists of up to 10 documents at the largest alpha of the paper."""
    near = tuple(range(10))
    two_shared_in_place = (0, 1, *range(20, 28))
    three_shared_far_away = (*range(20, 27), 0, 1, 2)

    assert distance(near, three_shared_far_away, alpha=alpha) < distance(
        near, two_shared_in_place, alpha=alpha
    )


def test_distance_is_symmetric_and_bounded() -> None:
    assert distance(A, A) == 0.0
    assert distance(A, B) == distance(B, A)
    assert distance(A, (11, 12, 13, 14)) == np.inf
    assert distance((1, 2, 3), (1, -1, -1)) == pytest.approx(1 - 1 / 3)  # the longer one counts


def test_many_wide_contexts_are_compared_in_blocks() -> None:
    rng = np.random.default_rng(0)
    a = np.array([rng.permutation(300) for _ in range(40)], dtype=np.int32)
    b = np.array([rng.permutation(300) for _ in range(40)], dtype=np.int32)

    together = context_distance(a, b, alpha=0.01)

    single = [float(context_distance(a[i : i + 1], b[i : i + 1], alpha=0.01)[0]) for i in range(40)]
    assert together.tolist() == single


def test_the_paper_example_of_four_contexts_pairs_by_position() -> None:
    tree = cluster_by_distance([A, B, C, D], ONE_TOKEN)

    assert tree.prefixes == [(3, 5), (2, 6), (3, 5), (2, 6)]
    assert [path[0] for path in tree.search_paths] == [0, 1, 0, 1]
