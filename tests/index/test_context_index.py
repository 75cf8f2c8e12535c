import gc
import pickle
import weakref

import pytest

from ragboost.errors import ContextIndexError
from ragboost.index import ContextIndex, IndexEntry, Node
from tests.index.paths import traverse
from tests.integrity import check_index


def insert(index: ContextIndex, documents: str, *, length: int = 10) -> Node:
    return index.insert(tuple(documents), (length,) * len(documents))


def find(index: ContextIndex, documents: str) -> tuple[str, int]:
    match = index.search(tuple(documents), (10,) * len(documents))
    return "".join(map(str, match.documents)), match.cached_tokens


def filled(*sequences: str, **limits: int) -> ContextIndex:
    index = ContextIndex(**limits)
    for sequence in sequences:
        insert(index, sequence)
    return index


def contexts(index: ContextIndex) -> list[str]:
    return ["".join(map(str, node.context)) for node in index]


def sequence_length(node: Node) -> int:
    """Return the resident tokens from the root to the end of a node."""
    above = sum(each.num_tokens - each.generated_tokens for each in node.ancestors[:-1])
    return above + node.num_tokens


def test_nothing_is_found_in_an_empty_index() -> None:
    index = ContextIndex()

    assert find(index, "ab") == ("", 0)
    assert find(filled("ab"), "") == ("", 0)
    assert index.insert((), ()) is index.root
    check_index(index)


def test_a_prefix_is_found_in_any_order() -> None:
    index = filled("abcd", "abxy")

    assert find(index, "dcba") == ("abcd", 40)
    assert find(index, "yxqba") == ("abxy", 40)
    assert find(index, "cba") == ("abc", 30)
    assert find(index, "bcd") == ("", 0)


def test_the_longest_prefix_in_tokens_is_found_where_the_greedy_descent_misses_it() -> None:
    index = filled("ax", "ay", "bxyz", "bq")  # a and b tie; only below b is there more than x or y

    exact = find(index, "abxyz")
    index.max_visits = 2  # the root and its best child
    greedy = find(index, "abxyz")

    assert exact == ("bxyz", 40)
    assert greedy == ("ax", 20)


@pytest.mark.parametrize("max_visits", [1, 4, 32])
def test_a_long_prefix_is_followed_to_its_end_however_few_nodes_a_search_may_compare(
    max_visits: int,
) -> None:
    grown = [tuple(range(length)) for length in range(1, 61)]
    others = [(*context, f"other {len(context)}") for context in grown]
    index = ContextIndex(max_visits=max_visits)
    for context in grown + others:  # a chain of 60 nodes, each with another child
        index.insert(context, (10,) * len(context))

    match = index.search(grown[-1], (10,) * 60)

    assert match.documents == grown[-1]
    assert match.cached_tokens == 600


def test_of_equally_long_prefixes_the_one_with_the_more_relevant_document_is_found() -> None:
    index = filled("abc", "xyz")

    assert find(index, "xayb") == ("xy", 20)
    assert find(index, "axby") == ("ab", 20)


def test_an_evicted_end_is_not_found() -> None:
    index = filled("abc")

    assert index.evict(15) == 15

    assert find(index, "cba") == ("ab", 15)
    assert index.cached_prefix(tuple("abc")) == IndexEntry((), 15, num_cached=2)
    check_index(index)


def test_an_evicted_end_is_back_when_the_sequence_is_sent_again() -> None:
    index = filled("abc")
    index.evict(15)

    insert(index, "abc")

    assert find(index, "abc") == ("abc", 30)
    check_index(index)


def test_a_node_that_branches_inside_its_evicted_end_loses_it() -> None:
    index = filled("abc")
    index.evict(15)

    insert(index, "abd")

    assert contexts(index) == ["ab", "abd"]
    assert index.num_tokens == 30
    check_index(index)


def test_a_sequence_that_ends_before_an_evicted_end_is_the_next_to_go() -> None:
    index = filled("abc")
    index.evict(15)

    insert(index, "ab")
    check_index(index)

    assert contexts(index) == ["ab"]
    assert index.evict(100) == 20


def test_search_and_measuring_change_nothing() -> None:
    index = filled("ab", "ac", capacity_tokens=30)
    find(index, "ab")
    index.cached_prefix(("a", "b"))

    insert(index, "q")  # evicts b, the least recently inserted

    assert contexts(index) == ["a", "ac", "q"]


def test_the_least_recently_used_leaf_is_evicted_first() -> None:
    index = filled("ab", "ac", "ad", capacity_tokens=40)
    traverse(index, (0, 0))

    insert(index, "aef")

    assert contexts(index) == ["a", "ab", "aef"]
    check_index(index)


def test_a_sequence_beyond_the_capacity_keeps_what_fits() -> None:
    index = filled("xy", capacity_tokens=25)

    insert(index, "abcd")

    assert find(index, "abcd") == ("abc", 25)
    assert find(index, "xy") == ("", 0)
    check_index(index)


@pytest.mark.parametrize("limits", [{"capacity_tokens": 0}, {"max_nodes": 0}])
def test_an_index_without_room_stays_empty(limits: dict[str, int]) -> None:
    index = filled("ab", "ac", **limits)

    assert (index.num_nodes, index.num_tokens) == (0, 0)
    check_index(index)


def test_no_more_nodes_are_kept_than_allowed() -> None:
    index = ContextIndex(max_nodes=3)
    for sequence in ("ab", "ac", "xy", "xz", "ab"):
        insert(index, sequence)
        assert index.num_nodes <= 3
        check_index(index)

    assert find(index, "ab") == ("ab", 20)


def test_evicting_more_than_there_is_empties_the_index() -> None:
    index = filled("abc", "abd", "x")

    assert index.evict(0) == 0
    assert index.evict(1_000) == 50
    assert (index.num_nodes, index.num_tokens, list(index)) == (0, 0, [])


def test_a_node_knows_its_context_path_length_and_flag() -> None:
    index = filled("abc")
    node = index.insert(("a", "b", "x"), (10, 10, 7), multi_turn=True)

    assert node.context == ("a", "b", "x")
    assert node.search_path == (0, 1)
    assert sequence_length(node) == 27
    assert node.is_multi_turn
    assert not traverse(index, (0, 0)).is_multi_turn


def test_generated_tokens_follow_their_own_node_only() -> None:
    index = filled("ab")
    index.extend(traverse(index, (0,)), 5)

    child = insert(index, "abc")

    assert sequence_length(traverse(index, (0,))) == 25
    assert sequence_length(child) == 30
    assert find(index, "cba") == ("abc", 30)
    assert index.num_tokens == 35
    check_index(index)


def test_generated_tokens_are_evicted_before_the_documents() -> None:
    index = ContextIndex()
    index.extend(insert(index, "ab"), 5)

    index.evict(3)
    assert find(index, "ab") == ("ab", 20)
    index.evict(3)
    assert find(index, "ab") == ("ab", 19)
    check_index(index)


def test_generating_behind_an_evicted_end_means_that_it_was_computed_again() -> None:
    index = ContextIndex()
    node = insert(index, "ab")
    index.evict(15)

    index.extend(node, 4)

    assert (find(index, "ab"), index.num_tokens) == (("ab", 20), 24)
    check_index(index)


def test_extending_the_root_or_a_lost_node_does_nothing() -> None:
    index = ContextIndex()
    node = insert(index, "ab")
    index.evict(20)

    index.extend(node, 5)
    index.extend(index.root, 5)

    assert index.num_tokens == 0
    assert not index.holds(node)
    check_index(index)


def test_a_search_path_stays_valid_when_a_sibling_is_removed() -> None:
    index = filled("ab", "ac", "ad")
    assert traverse(index, (0, 2)).context == ("a", "d")

    index.remove(traverse(index, (0, 0)))
    new = insert(index, "ae")

    assert traverse(index, (0, 2)).context == ("a", "d")
    assert new.search_path == (0, 3)
    check_index(index)


@pytest.mark.parametrize("path", [(0, 0), (0, 7), (1,), (0, 1, 0)])
def test_an_evicted_search_path_is_an_error(path: tuple[int, ...]) -> None:
    index = filled("ab", "ac")
    index.remove(traverse(index, (0, 0)))

    with pytest.raises(ContextIndexError, match="search path"):
        traverse(index, path)
    check_index(index)


def test_a_removed_node_takes_what_extends_it() -> None:
    index = filled("abc", "abd", "x")

    assert index.remove(traverse(index, (0,))) == 40

    assert contexts(index) == ["x"]
    check_index(index)


def test_leaves_below_a_removed_node_are_not_evicted_again() -> None:
    index = filled("abc", "abd", "x")
    index.remove(traverse(index, (0,)))

    assert index.evict(100) == 10

    assert (index.num_nodes, index.num_tokens) == (0, 0)
    check_index(index)


def test_a_removed_node_is_removed_once_and_the_root_never() -> None:
    index = filled("ab", "ac")
    leaf = traverse(index, (0, 0))
    index.remove(traverse(index, (0,)))

    assert index.remove(leaf) == 0
    with pytest.raises(ContextIndexError, match="clear"):
        index.remove(index.root)


def test_nodes_of_a_cleared_index_are_lost() -> None:
    index = filled("ab")
    node = traverse(index, (0,))
    index.clear()

    assert not index.holds(node)
    assert index.remove(node) == 0
    assert (index.num_nodes, index.num_tokens, find(index, "ab")) == (0, 0, ("", 0))


@pytest.mark.parametrize(
    ("documents", "tokens", "message"),
    [
        (("a", "b"), (1,), "2 documents need as many lengths"),
        (("a",), (0,), "at least 1"),
        (("a",), (-3,), "at least 1"),
        (("a", "b", "a"), (1, 1, 1), "distinct"),
    ],
)
def test_a_wrong_sequence_is_refused(
    documents: tuple[str, ...], tokens: tuple[int, ...], message: str
) -> None:
    index = filled("ab")

    with pytest.raises(ContextIndexError, match=message):
        index.insert(documents, tokens)
    check_index(index)
    assert index.num_tokens == 20


def test_documents_of_several_types_stay_apart() -> None:
    index = ContextIndex()
    index.insert((1, "1", None, ("1",)), (1, 1, 1, 1))

    assert index.search((("1",), None, "1", 1), (1, 1, 1, 1)).documents == (1, "1", None, ("1",))
    assert index.search(("1",), (1,)).documents == ()


def test_siblings_are_walked_in_slot_order_behind_their_parent() -> None:
    assert contexts(filled("ab", "x", "ac", "a", "abd")) == ["a", "ab", "abd", "ac", "x"]


def test_a_damaged_index_is_reported() -> None:
    index = filled("ab", "ac")
    index.num_tokens += 1
    with pytest.raises(ContextIndexError, match="30 tokens, recorded 3 and 31"):
        check_index(index)

    index.num_tokens -= 1
    traverse(index, (0, 1)).num_tokens = 0
    with pytest.raises(ContextIndexError, match="has resident tokens"):
        check_index(index)


def test_a_million_touches_cost_no_memory() -> None:
    index = filled(*(f"{front}{back}" for front in "abcde" for back in "vwxyz"))
    nodes = list(index)

    for i in range(1_000_000):
        index.touch(nodes[i % 30])
        if i % 1_000 == 0:
            index.evict(1)
        if i == 100_000:
            early = len(pickle.dumps(index))

    assert len(pickle.dumps(index)) < 1.1 * early
    check_index(index)


def test_removed_nodes_are_not_kept() -> None:
    index = filled("zy", "zx")
    sizes = []
    for i in range(3_000):
        insert(index, f"ab{i % 10}")
        index.remove(insert(index, f"ac{i % 7}").ancestors[0])
        sizes.append(len(pickle.dumps(index)))

    assert max(sizes[1_000:]) < 1.1 * max(sizes[:1_000])
    check_index(index)


def test_a_chain_may_be_deeper_than_any_recursion_limit() -> None:
    depth = 5_000
    index = ContextIndex(max_visits=depth)
    documents, ones = tuple(range(depth)), (1,) * depth
    for length in range(depth, 0, -1):  # each splits the one node on its path
        index.insert(documents[:length], ones[:length])
    node = index.insert(documents, ones)
    assert index.num_nodes == depth

    check_index(index)
    assert index.search(documents[::-1], ones).documents == documents
    assert traverse(index, node.search_path) is node
    assert index.insert(documents, ones) is node
    assert index.evict(depth // 2) == depth // 2
    assert index.remove(traverse(index, (0,))) == depth // 2
    assert index.num_nodes == 0


class Text(str):
    """A document that can be watched."""


@pytest.mark.parametrize("is_cleared", [True, False])
def test_nodes_are_freed_without_the_garbage_collector(is_cleared: bool) -> None:
    gc.disable()
    try:
        index = ContextIndex()
        documents = [tuple(map(Text, (f"a{i % 3}", f"b{i % 9}", f"c{i}"))) for i in range(30)]
        for each in documents:
            index.insert(each, (10, 10, 10))
        watched = [weakref.ref(document) for each in documents for document in each]
        del documents, each
        if is_cleared:
            index.clear()
            index.insert(("next",), (10,))
        else:
            del index
        assert [text() for text in watched if text() is not None] == []
    finally:
        gc.enable()


def test_clearing_takes_no_node_apart_and_insertions_few() -> None:
    index = ContextIndex()
    for i in range(300):
        index.insert((f"d{i}", f"e{i}"), (10, 10))
    nodes = list(index)
    index.clear()
    assert sum(node.parent is None for node in nodes) == 0
    index.insert(("next",), (10,))
    assert 0 < sum(node.parent is None for node in nodes) < 100
    for _ in range(10):
        index.insert(("next",), (10,))
    assert all(node.parent is None for node in nodes)
    assert index.num_nodes == 1
    check_index(index)
