import random
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.batch.simulate import simulate
from ragboost.index.clustering import ClusterTree, cluster
from ragboost.ordering import plan_batch
from research.distance import MAX_CONTEXTS, cluster_by_distance, plan_by_distance

Contexts = Sequence[Sequence[Hashable]]

# By linkage, to cluster and to plan; the second is the paper's, for comparison.
CLUSTER: dict[str, Any] = {"savings": cluster, "distance": cluster_by_distance}
PLAN: dict[str, Any] = {"savings": plan_batch, "distance": plan_by_distance}
linkages = pytest.mark.parametrize("linkage", PLAN)

CONTEXTS = st.lists(st.lists(st.integers(0, 12), max_size=6), max_size=25)
LENGTHS = st.lists(st.integers(1, 50), min_size=13, max_size=13).map(lambda v: dict(enumerate(v)))


def random_batch(
    seed: int, *, contexts: int, documents: int, k: int
) -> tuple[list[list[int]], dict[int, int]]:
    rng = random.Random(seed)
    tokens = {document: rng.randint(200, 1_200) for document in range(documents)}
    return [rng.sample(range(documents), k) for _ in range(contexts)], tokens


def ordered(
    contexts: Contexts, tokens: Mapping[Any, int], *, linkage: str = "savings", **options: Any
) -> list[list[Hashable]]:
    """The batch as sent, without repeated documents, and a check of what it says to save."""
    plan = PLAN[linkage](contexts, tokens, **options)
    orders = [
        list(dict.fromkeys(contexts[at][i] for i in plan.permutations[at]))
        for at in plan.release_order
    ]
    if linkage != "distance":  # whose release order is not depth-first
        assert simulate(orders, tokens, capacity_tokens=None).cached_tokens >= plan.saved_tokens
    return orders


def check_tree(contexts: Contexts, tree: ClusterTree) -> None:
    """What holds for every cluster tree."""
    assert sorted(tree.leaves) == list(range(len(contexts)))
    assert len(set(tree.search_paths)) == len(contexts)
    assert [tree.search_paths[i] for i in tree.leaves] == sorted(tree.search_paths)
    for context, prefix in zip(contexts, tree.prefixes, strict=True):
        assert len(set(prefix)) == len(prefix)
        assert set(prefix) <= set(context)
    below: dict[tuple[int, ...], list[int]] = {}
    for i, path in enumerate(tree.search_paths):
        for depth in range(1, len(path)):
            below.setdefault(path[:depth], []).append(i)
    for path, members in below.items():
        assert len(members) >= 2
        shared = set.intersection(*(set(contexts[i]) for i in members))
        start = {tree.prefixes[i][: len(shared)] for i in members}
        assert len(start) == 1, f"{path}: contexts below one node start differently: {start}"
        assert set(start.pop()) == shared


@linkages
@settings(max_examples=80, deadline=None)
@given(contexts=CONTEXTS, tokens=LENGTHS)
def test_contexts_below_a_node_start_with_all_they_share(
    linkage: str, contexts: list[list[int]], tokens: dict[int, int]
) -> None:
    tree = CLUSTER[linkage](contexts, tokens)

    check_tree(contexts, tree)
    assert tree == CLUSTER[linkage](contexts, tokens)


@settings(max_examples=50, deadline=None)
@given(contexts=CONTEXTS, tokens=LENGTHS, exact=st.integers(2, 8))
def test_a_batch_clustered_in_parts_is_a_tree_as_well(
    contexts: list[list[int]], tokens: dict[int, int], exact: int
) -> None:
    tree = cluster(contexts, tokens, exact_contexts=exact)

    check_tree(contexts, tree)
    ordered(contexts, tokens, exact_contexts=exact)


@settings(max_examples=80, deadline=None)
@given(contexts=CONTEXTS, tokens=LENGTHS)
def test_an_unbounded_cache_saves_at_least_what_the_tree_says(
    contexts: list[list[int]], tokens: dict[int, int]
) -> None:
    ordered(contexts, tokens)


@linkages
@pytest.mark.parametrize("seed", range(4))
def test_an_unbounded_cache_saves_exactly_what_the_tree_says(linkage: str, seed: int) -> None:
    contexts, tokens = random_batch(seed, contexts=60, documents=40, k=6)
    plan = PLAN[linkage](contexts, tokens)

    orders = ordered(contexts, tokens, linkage=linkage)

    assert simulate(orders, tokens, capacity_tokens=None).cached_tokens == plan.saved_tokens


def greedy_savings(contexts: Contexts, tokens: Mapping[Hashable, int]) -> int:
    """Merge the best-scored pair again and again, looking at all pairs every time."""

    def length(documents: frozenset[Hashable]) -> int:
        return sum(tokens[document] for document in documents)

    def score(a: frozenset[Hashable], b: frozenset[Hashable]) -> float:
        saved = length(a & b)
        return saved - 0.04 * (min(length(a), length(b)) - saved) if saved else 0.0

    clusters = [frozenset(context) for context in contexts]
    saved = 0
    while True:
        pairs = [
            (score(a, b), i, j)
            for j, b in enumerate(clusters)
            for i, a in enumerate(clusters[:j])
            if a & b
        ]
        if not pairs:
            return saved
        _, i, j = max(pairs)
        merged = clusters[i] & clusters[j]
        saved += length(merged)
        clusters = [c for at, c in enumerate(clusters) if at not in (i, j)] + [merged]


@pytest.mark.parametrize(
    ("contexts", "documents", "k"), [(20, 15, 5), (40, 40, 6), (30, 12, 6), (30, 100, 8)]
)
def test_savings_are_those_of_the_greedy_merge_of_all_pairs(
    contexts: int, documents: int, k: int
) -> None:
    found = reference = 0
    for seed in range(5):
        batch, tokens = random_batch(seed, contexts=contexts, documents=documents, k=k)
        one, all_pairs = cluster(batch, tokens).saved_tokens, greedy_savings(batch, tokens)
        assert one >= 0.97 * all_pairs
        found, reference = found + one, reference + all_pairs

    assert found >= 0.99 * reference


def planted(seed: int, *, depth: int) -> tuple[list[list[int]], dict[int, int], int]:
    """Contexts from a tree of shared prefixes, each shuffled, whose best merges are plain.

    Every node of a binary tree adds a document of its own, shorter the deeper; the contexts are the
    leaves' ways. Returns contexts, lengths and what sharing all of it saves.
    """
    rng = random.Random(seed)
    tokens, ways, saved = {}, [], 0
    for node in range(1, 2 ** (depth + 1)):
        level = node.bit_length() - 1
        tokens[node] = 1_000 - 100 * level + node % 7
        if level < depth:
            saved += tokens[node] * (2 ** (depth - level) - 1)
        else:
            way = [node >> up for up in range(depth + 1)]
            rng.shuffle(way)
            ways.append(way)
    rng.shuffle(ways)
    return ways, tokens, saved


@linkages
@pytest.mark.parametrize("seed", range(3))
def test_a_planted_tree_is_found_exactly(linkage: str, seed: int) -> None:
    contexts, tokens, saved = planted(seed, depth=5)

    tree = CLUSTER[linkage](contexts, tokens)

    assert tree.saved_tokens == saved
    check_tree(contexts, tree)


def test_longer_documents_are_worth_more_than_many() -> None:
    contexts = [["long", "x", "y"], ["long", "p", "q"], ["x", "y", "p", "q"]]
    tokens = {"long": 1_000, "x": 10, "y": 10, "p": 10, "q": 10}

    tree = cluster(contexts, tokens)

    assert tree.prefixes == [("long",), ("long",), ()]
    assert tree.saved_tokens == 1_000


@linkages
def test_contexts_that_share_nothing_are_never_merged(linkage: str) -> None:
    contexts = [[1, 2], [3, 4], [5], [], [6, 7]]

    tree = CLUSTER[linkage](contexts, dict.fromkeys(range(10), 5))

    assert tree.prefixes == [()] * 5
    assert tree.search_paths == [(0,), (1,), (2,), (3,), (4,)]
    assert (tree.leaves, tree.saved_tokens) == ([0, 1, 2, 3, 4], 0)


@linkages
def test_equal_contexts_are_siblings_that_share_everything(linkage: str) -> None:
    contexts = [["b", "a", "c"]] * 50

    tree = CLUSTER[linkage](contexts, {"a": 2, "b": 3, "c": 4})

    assert tree.saved_tokens == 49 * 9
    assert {len(path) for path in tree.search_paths} == {2}
    assert len(set(tree.prefixes)) == 1
    check_tree(contexts, tree)


@linkages
@pytest.mark.parametrize("contexts", [[], [[]], [[], []], [[1]], [[1, 2, 3]], [[], [1], []]])
def test_a_batch_with_nothing_to_share_stays_as_it_is(
    linkage: str, contexts: list[list[int]]
) -> None:
    plan = PLAN[linkage](contexts, dict.fromkeys(range(5), 1))

    assert plan.release_order == tuple(range(len(contexts)))
    assert plan.permutations == tuple(tuple(range(len(context))) for context in contexts)
    assert len(plan.search_paths) == len(contexts)
    assert plan.saved_tokens == 0


@linkages
def test_a_repeated_document_counts_once_and_its_repeats_stand_last(linkage: str) -> None:
    contexts = [["x", "a", "x", "b"], ["b", "y", "x", "b"]]

    plan = PLAN[linkage](contexts, {"a": 1, "b": 1, "x": 1, "y": 1})

    sent = [[c[i] for i in p] for c, p in zip(contexts, plan.permutations, strict=True)]
    assert sent[0][:2] == sent[1][:2]
    assert sorted(sent[0]) == sorted(contexts[0])
    assert (sent[0][-1], sent[1][-1]) == ("x", "b")
    assert plan.saved_tokens == 2


@linkages
def test_ids_of_several_types_stay_apart(linkage: str) -> None:
    contexts: list[list[Hashable]] = [[1, "1", None, ("1",)], ["1", ("1",), 2.5], [None, 2.5, "z"]]
    tokens: dict[Hashable, int] = {1: 1, "1": 2, None: 3, ("1",): 4, 2.5: 5, "z": 6}

    tree = CLUSTER[linkage](contexts, tokens)

    check_tree(contexts, tree)
    assert tree.saved_tokens >= 5


@linkages
def test_contexts_of_ten_thousand_documents_are_planned(linkage: str) -> None:
    wide = [list(range(10_000)), list(range(5_000, 15_000)), [0, 7_000, 14_999]]

    plan = PLAN[linkage](wide, dict.fromkeys(range(15_000), 3))

    assert sorted(plan.release_order) == [0, 1, 2]
    for context, permutation in zip(wide, plan.permutations, strict=True):
        assert sorted(permutation) == list(range(len(context)))
    assert plan.saved_tokens > 0


def test_as_many_equal_contexts_as_there_are_need_no_recursion() -> None:
    tree = cluster([[1, 2, 3]] * 5_000, dict.fromkeys((1, 2, 3), 10))

    assert tree.saved_tokens == 4_999 * 30
    assert tree.search_paths == [(0, i) for i in range(5_000)]


def test_nested_contexts_are_a_chain() -> None:
    contexts = [list(range(i % 60 + 1)) for i in range(300)]

    tree = cluster(contexts, dict.fromkeys(range(60), 10))

    check_tree(contexts, tree)
    assert tree.saved_tokens >= 0.99 * 10 * (sum(map(len, contexts)) - 60)


def test_more_empty_contexts_than_are_searched_whole_stay_as_they_are() -> None:
    assert cluster([[]] * 5, {}, exact_contexts=2).leaves == [0, 1, 2, 3, 4]


def test_very_long_documents_do_not_overflow() -> None:
    contexts = [[0, 1], [0, 2], [1, 2]]

    tree = cluster(contexts, {0: 10**12, 1: 10**11, 2: 1})

    assert tree.saved_tokens == 10**12


def test_the_quadratic_linkage_refuses_large_batches() -> None:
    contexts = [[1]] * (MAX_CONTEXTS + 1)

    with pytest.raises(ValueError, match="at most"):
        cluster_by_distance(contexts, {1: 1})
