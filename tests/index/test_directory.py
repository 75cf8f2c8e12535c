"""The directory of several indexes beside the indexes themselves."""

import gc
import weakref
from collections.abc import Hashable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ragboost.index import ContextIndex, PrefixDirectory, Seat
from ragboost.index.node import Branch
from tests.integrity import check_directory, check_index

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2}
DOCUMENTS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=5).map(tuple)
INDEX = st.integers(0, 2)

Prefix = tuple[Hashable, ...]


def lengths(documents: Sequence[Hashable]) -> tuple[int, ...]:
    return tuple(TOKENS[str(document)] for document in documents)


def held_by(index: ContextIndex) -> set[Prefix]:
    """Every prefix of an index, resident in part or whole."""
    found = set()
    for node in index:
        end = len(node.context)
        found |= {node.context[: end - at] for at in range(len(node.documents))}
    return found


def listed_for(directory: PrefixDirectory, bit: int) -> set[Prefix]:
    found = set()
    stack: list[tuple[Branch, Prefix]] = [(directory.root, ())]
    while stack:
        branch, above = stack.pop()
        for child in branch.children.values():
            if directory._live(child) & bit:
                ends = range(1, len(child.documents) + 1)
                found |= {(*above, *child.documents[:end]) for end in ends}
                stack.append((child, (*above, *child.documents)))
    return found


def tokens_of(directory: PrefixDirectory, documents: Prefix, *, in_order: bool) -> list[int]:
    find = directory.search_in_order if in_order else directory.search
    found = find(documents, lengths(documents))
    assert sum(holders.members.bit_count() for holders in found) <= 3
    return [sum(h.tokens for h in found if h.members & 1 << number) for number in range(3)]


class DirectoryMachine(RuleBasedStateMachine):
    """After every step the directory lists what each index holds, and finds the same."""

    @initialize(capacity=st.none() | st.integers(5, 40))
    def start(self, capacity: int | None) -> None:
        self.directory = PrefixDirectory(max_visits=1_000)
        self.indexes = [
            ContextIndex(capacity_tokens=capacity, seat=Seat(self.directory, 1 << number))
            for number in range(3)
        ]

    @rule(at=INDEX, documents=DOCUMENTS, is_use=st.booleans())
    def insert(self, at: int, documents: Prefix, is_use: bool) -> None:
        self.indexes[at].insert(documents, lengths(documents), is_use=is_use)

    @rule(at=INDEX, documents=DOCUMENTS, count=st.integers(0, 5), partial=st.integers(0, 4))
    def set_resident(self, at: int, documents: Prefix, count: int, partial: int) -> None:
        self.indexes[at].set_resident(
            documents,
            lengths(documents),
            num_documents=min(count, len(documents)),
            partial_tokens=partial if count < len(documents) else 0,
        )

    @rule(at=INDEX, num_tokens=st.integers(0, 12))
    def evict(self, at: int, num_tokens: int) -> None:
        self.indexes[at].evict(num_tokens)

    @rule(at=INDEX, documents=DOCUMENTS)
    def drop_unconfirmed(self, at: int, documents: Prefix) -> None:
        self.indexes[at].drop_unconfirmed(documents)

    @rule(at=INDEX)
    def clear(self, at: int) -> None:
        self.indexes[at].clear()

    @rule(at=INDEX)
    def replace(self, at: int) -> None:
        self.indexes[at].leave_directory()
        self.indexes[at] = ContextIndex(seat=Seat(self.directory, 1 << at))

    @rule(documents=DOCUMENTS)
    def search(self, documents: Prefix) -> None:
        best = [
            max((sum(lengths(p)) for p in held_by(index) if set(p) <= set(documents)), default=0)
            for index in self.indexes
        ]
        assert tokens_of(self.directory, documents, in_order=False) == best

    @rule(documents=DOCUMENTS)
    def search_in_order(self, documents: Prefix) -> None:
        prefixes = [documents[:end] for end in range(1, len(documents) + 1)]
        best = [
            max((sum(lengths(p)) for p in held_by(index).intersection(prefixes)), default=0)
            for index in self.indexes
        ]
        assert tokens_of(self.directory, documents, in_order=True) == best

    @invariant()
    def both_hold_the_same(self) -> None:
        check_directory(self.directory)
        for number, index in enumerate(self.indexes):
            check_index(index)
            assert listed_for(self.directory, 1 << number) == held_by(index)


DirectoryMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, print_blob=True
)
test_a_directory_lists_what_its_indexes_hold_after_every_step = DirectoryMachine.TestCase


def test_an_index_that_is_emptied_leaves_nothing_in_the_directory() -> None:
    directory = PrefixDirectory()
    first, second = (ContextIndex(seat=Seat(directory, bit)) for bit in (1, 2))
    for index in (first, second):
        for at in range(200):
            index.insert((f"a{at}", f"b{at}", "c"), (1, 1, 1))
    second.evict(10_000)
    first.clear()
    for _ in range(10):
        first.insert((), ())  # takes the cleared tree apart
    assert not directory.root.children


def test_what_returns_after_a_clear_stays_while_the_old_tree_is_taken_apart() -> None:
    directory = PrefixDirectory()
    index, other = (ContextIndex(seat=Seat(directory, bit)) for bit in (1, 2))
    sequences = [(f"a{at % 20}", f"b{at}", "c") for at in range(400)]
    for documents in sequences:
        index.insert(documents, (1, 1, 1))
    index.clear()
    for at, documents in enumerate(reversed(sequences)):
        index.insert(documents, (1, 1, 1))
        other.insert(documents[: at % 4], (1, 1, 1)[: at % 4])
        assert listed_for(directory, 1) == held_by(index)
        assert listed_for(directory, 2) == held_by(other)
    assert not index._retired


def test_an_engine_that_says_again_and_again_that_it_is_empty_costs_no_memory() -> None:
    directory = PrefixDirectory()
    index = ContextIndex(seat=Seat(directory, 1))
    for at in range(50):
        index.insert((f"a{at}", "b"), (1, 1))
        for _ in range(100):
            index.clear()
    assert len(index._retired) <= 1
    assert listed_for(directory, 1) == held_by(index) == set()


@given(st.lists(DOCUMENTS, max_size=20), DOCUMENTS)
def test_fewer_visits_find_no_more(sent: list[Prefix], documents: Prefix) -> None:
    directory = PrefixDirectory()
    indexes = [ContextIndex(seat=Seat(directory, 1 << number)) for number in range(3)]
    for at, each in enumerate(sent):
        indexes[at % 3].insert(each, lengths(each))
    directory.max_visits = 1_000
    most = tokens_of(directory, documents, in_order=False)
    directory.max_visits = 1
    assert all(
        few <= many
        for few, many in zip(tokens_of(directory, documents, in_order=False), most, strict=True)
    )


def test_documents_that_were_sent_long_ago_are_forgotten() -> None:
    directory = PrefixDirectory()
    directory.note(("old",), 1)
    for _ in range(1_000):
        directory.note(("a", "b"), 1)
        directory.note(("b",), 2)
    assert directory.recent(("old", "a", "b", "new")) == [0, 1, 3, 0]


def test_documents_sent_alone_are_recent_as_long_as_those_of_long_lists() -> None:
    directory = PrefixDirectory()
    for number in range(300):
        directory.note((number,), 1)
    assert directory.recent((0, 299)) == [1, 1]


def test_an_index_that_leaves_was_sent_nothing() -> None:
    directory = PrefixDirectory()
    indexes = [ContextIndex(seat=Seat(directory, bit)) for bit in (1, 2)]
    for index in indexes:
        index.insert(("a", "b"), (3, 4))
    indexes[0].clear()
    indexes[0].leave_directory()

    assert directory.recent(("a", "b")) == [2, 2]


def test_an_index_that_leaves_is_taken_apart_by_later_insertions_of_others() -> None:
    directory = PrefixDirectory()
    gone, other = (ContextIndex(seat=Seat(directory, bit)) for bit in (1, 2))
    for at in range(2_000):
        gone.insert((f"a{at}", "b"), (1, 1))
    gone.leave_directory()
    assert directory.root.children, "a backend that goes down must not stop the event loop"
    assert directory.search(("a1", "b"), (1, 1)) == []
    again = ContextIndex(seat=Seat(directory, 1))
    again.insert(("a1", "c"), (1, 1))
    for _ in range(40):
        other.insert((), ())
    assert list(directory.root.children) == ["a1"]
    assert listed_for(directory, 1) == held_by(again)


def test_what_another_proxy_sent_counts_as_sent_lately() -> None:
    directory = PrefixDirectory()
    index = ContextIndex(seat=Seat(directory, 2))
    index.set_resident(("a", "b"), (3, 4), num_documents=2)
    assert directory.recent(("b", "a", "c")) == [2, 2, 0]


def test_recent_documents_are_bounded() -> None:
    directory = PrefixDirectory()
    for at in range(40):
        directory.note([f"{at} {number}" for number in range(10_000)], 1)
    assert len(directory._recent.newer) + len(directory._recent.older) <= 2 * 60_000


def test_a_directory_is_freed_without_the_garbage_collector() -> None:
    class Text(str):
        """A document that can be watched."""

    gc.disable()
    try:
        directory = PrefixDirectory()
        index = ContextIndex(seat=Seat(directory, 1))
        documents = [Text(f"d{at}") for at in range(20)]
        for at in range(18):
            index.insert(documents[at : at + 3], (1, 1, 1))
        watched = [weakref.ref(document) for document in documents]
        del documents, index, directory
        assert [text() for text in watched if text() is not None] == []
    finally:
        gc.enable()
