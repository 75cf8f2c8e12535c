"""The prefix tree against a plain set of paths."""

import random

import pytest

from ragboost.chunk_cache.eviction import LACR
from ragboost.errors import ChunkCacheError
from ragboost.graph.layout import DepPrompt, LinearNode, lay_out
from ragboost.graph.tree_cache import TreeCache, TreeMatch, TreeRequest
from research.eviction import POLICIES
from research.eviction.lru import LRU
from tests.kv_integrity import check_tree


def request(*graph: tuple[int, ...]) -> TreeRequest:
    return TreeRequest("", lay_out(DepPrompt.of((1, 2), graph, (3,))))


def apart(*parts: tuple[int, ...]) -> TreeRequest:
    """Texts behind the same system text that do not see each other."""
    nodes = [LinearNode(f"part {n}", tokens, ("system",)) for n, tokens in enumerate(parts)]
    task = LinearNode("task", (3,), ("system", *(node.name for node in nodes)))
    return TreeRequest("", lay_out(DepPrompt((LinearNode("system", (1, 2)), *nodes, task))))


def store(tree: TreeCache, one: TreeRequest) -> TreeMatch:
    found = tree.match(one)
    tree.insert(one, found)
    check_tree(tree)
    return found


def test_what_was_stored_is_found_whatever_its_branches_now_are() -> None:
    tree = TreeCache(100, LRU())
    store(tree, request((5, 6, 7, 8), (5, 6, 9)))

    found = tree.match(request((5, 6, 7, 4), (5, 9)))

    assert found.slots == [0, 1, 2, 3, 4]
    assert tree.num_tokens == 7


def test_a_branch_inside_a_stored_run_splits_it() -> None:
    tree = TreeCache(100, LRU())
    store(tree, request((5, 6, 7, 8)))
    before = tree.match(request((5, 6, 7, 8)))

    store(tree, request((5, 6, 9)))

    after = tree.match(request((5, 6, 7, 8)))
    assert after.rows == before.rows
    assert len(after.nodes) == len(before.nodes) + 1
    assert tree.num_tokens == 7


def test_a_part_continues_the_one_it_depends_on_though_another_part_split_that() -> None:
    tree = TreeCache(100, LRU())
    system, first = LinearNode("system", (1, 2)), LinearNode("first", (5, 6), ("system",))
    alike = LinearNode("alike", (5, 7), ("system",))
    behind = LinearNode("behind", (9, 8), ("system", "first"))
    task = LinearNode("task", (3,), ("system", "first", "alike", "behind"))
    whole = TreeRequest("", lay_out(DepPrompt((system, first, alike, behind, task))))
    store(tree, whole)

    assert tree.match(whole).slots == list(range(8))
    assert tree.num_tokens == 7, "the first tokens of two parts are one"


def test_only_leaves_go_and_never_those_in_use() -> None:
    tree = TreeCache(8, LRU())
    store(tree, request((5, 6), (7, 8)))
    store(tree, request((5, 6)))

    store(tree, request((9, 10), (5, 6)))

    assert len(tree.match(request((5, 6))).slots) == 4
    assert len(tree.match(request((9, 10))).slots) == 4
    store(tree, request((11, 12, 13)))
    assert len(tree.match(request((11, 12, 13))).slots) == 5


def test_what_does_not_fit_is_not_stored() -> None:
    tree = TreeCache(5, LRU())

    store(tree, request((5, 6, 7), (8, 9, 10)))

    assert tree.num_tokens == 5
    assert tree.match(request((5, 6, 7))).slots == [0, 1, 2, 3, 4]
    assert tree.match(request((8, 9, 10))).slots == [0, 1]


def test_a_tree_without_paths_is_forgotten() -> None:
    tree = TreeCache(6, LRU())
    for salt in ("one", "two", "three"):
        store(tree, TreeRequest(salt, request((5, 6, 7, 8)).layout))

    assert tree.num_tokens == 6
    assert tree.match(TreeRequest("one", request((5, 6)).layout)).slots == []


def test_waiting_requests_keep_what_they_will_use() -> None:
    tree = TreeCache(8, LACR())
    early, late = request((5, 6)), request((7, 8))
    for one in (early, early, late):
        store(tree, one)
    tree.waiting = lambda: [late]

    store(tree, request((9, 10, 11, 12)))

    assert len(tree.match(late).slots) == 4
    assert len(tree.match(early).slots) == 2


@pytest.mark.parametrize("policy", ["lru", "lfu", "heat", "lacr"])
def test_random_requests_leave_the_books_right(policy: str) -> None:
    rng = random.Random(policy)
    tree = TreeCache(60, POLICIES[policy]())
    for _ in range(150):
        graph = [
            tuple(rng.randrange(5, 9) for _ in range(rng.randrange(1, 7)))
            for _ in range(rng.randrange(1, 7))
        ]
        one = rng.choice((request, apart))(*graph)
        store(tree, one)
        nodes = tree.match(one).nodes
        assert len({node.key for node in nodes}) == len(nodes)
    assert tree.num_evicted > 0
    tree.clear()
    check_tree(tree)
    assert tree.num_tokens == 0


def test_a_cache_of_nothing_is_refused() -> None:
    with pytest.raises(ChunkCacheError, match="at least 1 token"):
        TreeCache(0, LRU())
