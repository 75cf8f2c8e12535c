from ragboost.index import ContextIndex, IndexEntry
from tests.integrity import check_index

FRONT = ("a", "b")


def turn(index: ContextIndex, *, history: int, length: int) -> IndexEntry:
    return index.record_turn(FRONT, (10, 10), history_tokens=history, turn_tokens=length)


def test_documents_at_the_front_are_found_by_the_next_request() -> None:
    index = ContextIndex()

    first = index.record_leading(FRONT, (10, 10))
    assert (first.search_path, first.cached_tokens, first.path) == ((0,), 0, ())
    second = index.record_leading(("a", "c"), (10, 5))
    assert (second.cached_tokens, second.num_cached) == (10, 1)
    assert second.path == ((10, first.tick),)


def test_nothing_at_the_front_is_recorded_nowhere() -> None:
    index = ContextIndex()

    assert not index.record_leading((), ()).documents
    assert index.record_turn((), (), history_tokens=5, turn_tokens=5) == IndexEntry((), 0)
    assert index.num_nodes == 0


def test_turns_add_up_behind_the_front() -> None:
    index = ContextIndex()
    index.record_leading(FRONT, (10, 10))

    second, third = turn(index, history=0, length=7), turn(index, history=7, length=5)

    assert [t.cached_tokens for t in (second, third)] == [20, 27]
    assert index.num_tokens == 32
    check_index(index)


def test_two_conversations_with_the_same_front_add_up() -> None:
    index = ContextIndex()
    index.record_leading(FRONT, (10, 10))
    turn(index, history=0, length=7)

    other = turn(index, history=0, length=3)

    assert other.cached_tokens == 20
    assert index.num_tokens == 30


def test_an_evicted_history_is_computed_again() -> None:
    index = ContextIndex()
    index.record_leading(FRONT, (10, 10))
    turn(index, history=0, length=7)
    index.evict(12)

    third = turn(index, history=7, length=5)

    assert third.cached_tokens == 15
    assert index.num_tokens == 32
    check_index(index)


def test_a_front_that_ends_inside_a_node_is_split_off() -> None:
    index = ContextIndex()
    index.record_leading(("a", "b", "c"), (10, 10, 10))

    assert turn(index, history=0, length=7).cached_tokens == 20
    assert index.num_tokens == 37
    check_index(index)
