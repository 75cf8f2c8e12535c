"""The context index beside a plain set of prefixes that does the same slowly."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ragboost.errors import ContextIndexError
from ragboost.index import ContextIndex, Node
from tests.index.paths import traverse
from tests.integrity import check_index

Prefix = tuple[str, ...]

TOKENS = {"a": 3, "b": 4, "c": 1, "d": 6, "e": 2}
DOCUMENTS = st.lists(st.sampled_from(sorted(TOKENS)), unique=True, max_size=5).map(tuple)


def lengths(documents: Sequence[str]) -> tuple[int, ...]:
    return tuple(TOKENS[document] for document in documents)


def prefixes(documents: Prefix) -> list[Prefix]:
    return [documents[:end] for end in range(1, len(documents) + 1)]


class Model:
    """Every prefix with resident tokens, when it was used, and what was generated behind it."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.resident: dict[Prefix, int] = {}
        self.generated: dict[Prefix, int] = {}
        self.used: dict[Prefix, int] = {}
        self.tick = 0

    @property
    def num_tokens(self) -> int:
        return sum(self.resident.values()) + sum(self.generated.values())

    def touch(self, documents: Prefix) -> None:
        self.tick += 1
        for prefix in prefixes(documents):
            if prefix in self.resident:
                self.used[prefix] = self.tick

    def insert(self, documents: Prefix) -> None:
        for prefix in prefixes(documents):
            self.resident[prefix] = TOKENS[prefix[-1]]
        self.touch(documents)
        self.shrink()

    def extend(self, documents: Prefix, num_tokens: int) -> None:
        for prefix in prefixes(documents):
            self.resident[prefix] = TOKENS[prefix[-1]]
        self.generated[documents] = self.generated.get(documents, 0) + num_tokens
        self.touch(documents)
        self.shrink()

    def shrink(self) -> None:
        if self.capacity is not None:
            self.evict(self.num_tokens - self.capacity)

    def evict(self, num_tokens: int) -> int:
        evicted = 0
        while self.resident and evicted < num_tokens:
            inner = {prefix[:-1] for prefix in self.resident}
            leaf = min(self.resident.keys() - inner, key=self.used.__getitem__)
            evicted += self.shorten(leaf, num_tokens - evicted)
        return evicted

    def truncate(self, documents: Prefix, num_tokens: int) -> None:
        """Take tokens from the end of a sequence."""
        for prefix in reversed(prefixes(documents)):
            if num_tokens > 0:
                num_tokens -= self.shorten(prefix, num_tokens)

    def shorten(self, leaf: Prefix, num_tokens: int) -> int:
        taken = 0
        for part in (self.generated, self.resident):
            share = min(part.get(leaf, 0), num_tokens - taken)
            taken += share
            if share:
                part[leaf] -= share
                if not part[leaf]:
                    del part[leaf]
        return taken

    def remove(self, start: Prefix) -> int:
        removed = 0
        for part in (self.generated, self.resident):
            for prefix in [p for p in part if p[: len(start)] == start]:
                removed += part.pop(prefix)
        return removed

    def cached(self, documents: Prefix) -> int:
        return sum(self.resident.get(prefix, 0) for prefix in prefixes(documents))

    def longest(self, documents: Prefix) -> int:
        """Tokens of the best resident prefix whose documents all belong to the request."""
        wanted = set(documents)
        return max((self.cached(p) for p in self.resident if wanted.issuperset(p)), default=0)


class IndexMachine(RuleBasedStateMachine):
    """After every step both hold the same tokens of the same prefixes."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []

    index: ContextIndex

    @initialize(capacity=st.none() | st.integers(0, 40))
    def start(self, capacity: int | None) -> None:
        self.index = ContextIndex(capacity_tokens=capacity)
        self.model = Model(capacity)

    def node(self, choice: int) -> Node:
        """A node of the tree, or one that an earlier step inserted and that may be gone."""
        known: list[Node] = [*self.index, *self.nodes]
        return known[choice % len(known)]

    @rule(documents=DOCUMENTS, multi_turn=st.booleans())
    def insert(self, documents: Prefix, multi_turn: bool) -> None:
        node = self.index.insert(documents, lengths(documents), multi_turn=multi_turn)
        self.model.insert(documents)
        self.nodes.append(node)
        if self.index.holds(node):
            assert node.context == documents
            assert node.is_multi_turn or not multi_turn

    @precondition(lambda self: self.nodes)
    @rule(choice=st.integers(0, 99), num_tokens=st.integers(0, 9))
    def extend(self, choice: int, num_tokens: int) -> None:
        node = self.node(choice)
        documents = tuple(map(str, node.context))
        if num_tokens and documents and self.index.holds(node):
            self.model.extend(documents, num_tokens)
        self.index.extend(node, num_tokens)

    @precondition(lambda self: self.nodes and self.model.resident)
    @rule(choice=st.integers(0, 99), cut=st.integers(0, 2), more=DOCUMENTS)
    def insert_what_begins_like_another(self, choice: int, cut: int, more: Prefix) -> None:
        sent = sorted(self.model.resident)[choice % len(self.model.resident)]
        start = sent[: len(sent) - cut]
        rest = tuple(document for document in more if document not in start)
        self.insert(start + rest[: choice % 3], multi_turn=False)

    @rule(num_tokens=st.integers(0, 9))
    def evict(self, num_tokens: int) -> None:
        assert self.index.evict(num_tokens) == self.model.evict(num_tokens)

    @precondition(lambda self: self.nodes)
    @rule(choice=st.integers(0, 99), num_tokens=st.integers(0, 12))
    def truncate(self, choice: int, num_tokens: int) -> None:
        node = self.node(choice)
        if not node.is_leaf or node is self.index.root or not self.index.holds(node):
            with pytest.raises(ContextIndexError, match="not a leaf"):
                self.index.truncate(node, num_tokens)
            return
        documents = tuple(map(str, node.context))
        self.model.truncate(documents, node.num_tokens - max(1, num_tokens))
        self.index.truncate(node, num_tokens)

    @precondition(lambda self: self.nodes)
    @rule(choice=st.integers(0, 99))
    def remove(self, choice: int) -> None:
        node = self.node(choice)
        if node is self.index.root:
            return
        removed = 0
        if self.index.holds(node) and node.parent is not None:
            above = tuple(map(str, node.parent.context))
            removed = self.model.remove((*above, str(node.documents[0])))
        assert self.index.remove(node) == removed
        assert not self.index.holds(node)

    @precondition(lambda self: self.nodes)
    @rule(choice=st.integers(0, 99))
    def traverse(self, choice: int) -> None:
        node = self.node(choice)
        if self.index.holds(node):
            assert traverse(self.index, node.search_path) is node
            self.model.touch(tuple(map(str, node.context)))

    @rule(path=st.lists(st.integers(0, 3), max_size=4).map(tuple))
    def traverse_a_guessed_path(self, path: tuple[int, ...]) -> None:
        known = {node.search_path: node for node in self.index} | {(): self.index.root}
        if path not in known:
            with pytest.raises(ContextIndexError, match="search path"):
                traverse(self.index, path)
        else:
            assert traverse(self.index, path) is known[path]
            self.model.touch(tuple(map(str, known[path].context)))

    @rule(documents=DOCUMENTS)
    def search(self, documents: Prefix) -> None:
        tokens = lengths(documents)
        for visits in (1, 2, 1_000):
            self.index.max_visits = visits
            match = self.index.search(documents, tokens)
            found = tuple(map(str, match.documents))
            assert set(found) <= set(documents)
            assert not found or found in self.model.resident
            assert match.cached_tokens == self.model.cached(found)
            assert match.node.context[: len(found)] == found
            assert match.num_documents == len(found) - len(match.node.context) + len(
                match.node.documents
            )
        assert match.cached_tokens == self.model.longest(documents)

    @rule(documents=DOCUMENTS)
    def measure(self, documents: Prefix) -> None:
        prefix = self.index.cached_prefix(documents)
        assert prefix.cached_tokens == self.model.cached(documents)
        assert prefix.num_cached == sum(
            prefix in self.model.resident for prefix in prefixes(documents)
        )

    @precondition(lambda self: len(self.nodes) > 8)
    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.model = Model(self.model.capacity)

    @invariant()
    def both_hold_the_same(self) -> None:
        check_index(self.index)
        resident: dict[Prefix, int] = {}
        generated: dict[Prefix, int] = {}
        for node in self.index:
            documents = tuple(map(str, node.context))
            start = len(documents) - len(node.documents)
            left = node.num_tokens - node.generated_tokens
            for end, length in enumerate(node.tokens, start + 1):
                if left > 0:
                    resident[documents[:end]] = min(length, left)
                left -= length
            if node.generated_tokens:
                generated[documents] = node.generated_tokens
        assert resident == self.model.resident
        assert generated == self.model.generated
        assert self.index.num_tokens == self.model.num_tokens


IndexMachine.TestCase.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, print_blob=True
)
test_index_equals_a_set_of_prefixes_after_every_step = IndexMachine.TestCase


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, max_size=30), st.integers(0, 6))
def test_fewer_nodes_hold_no_more_than_all_of_them(sent: list[Prefix], max_nodes: int) -> None:
    index, everything = ContextIndex(max_nodes=max_nodes), Model(None)
    for documents in sent:
        index.insert(documents, lengths(documents))
        everything.insert(documents)
        check_index(index)
        assert index.num_nodes <= max_nodes
        match = index.search(documents, lengths(documents))
        assert match.cached_tokens <= everything.longest(documents)


@settings(max_examples=100, deadline=None)
@given(st.lists(DOCUMENTS, max_size=30))
def test_more_visits_never_find_less_than_the_greedy_descent(sent: list[Prefix]) -> None:
    index = ContextIndex()
    for documents in sent:
        tokens = lengths(documents)
        found = []
        for visits in (1, 2, 4, 1_000):
            index.max_visits = visits
            found.append(index.search(documents, tokens).cached_tokens)
        assert all(fewer <= more for fewer, more in pairwise(found))
        index.insert(documents, tokens)
