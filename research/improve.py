"""Improve a cluster forest by ruin and recreate: a few contexts leave it and find better places.
The bound that plans are measured against; .2 to 2 % better than them, for seconds a plan.

A local search on the saved tokens that never accepts a loss. Each context is a leaf, and an inner
node holds what everything below it shares beyond its parent. Knows document numbers and no clock.
"""

import random
from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragboost.index.clustering import ClusterTree, large
from ragboost.index.clustering.clusters import Ints, Merges, Rows, number
from ragboost.index.clustering.walk import walk

KeepImproving = Callable[[], bool]
"""Called before each step; False ends the search."""

_MOST_MOVED = 12  # contexts that leave the forest in one step, at most
_BLINK = 0.02  # share of places overlooked by chance, so that a context does not always return


def cluster_longer(
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    *,
    keep_improving: KeepImproving,
) -> ClusterTree:
    """Cluster by saved tokens as `cluster` does, and search for better places."""
    rows = number(contexts, tokens)
    merges = improve(rows, large.merge(rows), keep_improving=keep_improving)
    return walk(rows, merges, rank=np.arange(len(rows.names)))


def orders_of(tree: ClusterTree, contexts: Sequence[Sequence[Hashable]]) -> list[list[Hashable]]:
    """Return the documents of each context, its prefix in front, in the order of release."""
    return [list(dict.fromkeys([*tree.prefixes[at], *contexts[at]])) for at in tree.leaves]


def improve(rows: Rows, merges: Merges, *, keep_improving: KeepImproving) -> Merges:
    """Move contexts within a forest until `keep_improving` ends it; saves at least as many tokens.

    Equal numbers of steps give equal forests.
    """
    if not len(merges.left):
        return merges
    forest = _Forest(rows, merges, random.Random(0))
    while keep_improving():
        forest.step()
    return forest.merges(rows.documents.shape[1])


class _Node:
    """A set of documents below another one. Only `_Forest` changes it."""

    __slots__ = ("children", "holding", "num_tokens", "own", "parent")

    def __init__(self, own: frozenset[int], num_tokens: int) -> None:
        self.own = own  # documents that it adds to its parent's
        self.num_tokens = num_tokens
        # None for the root and for a node that has left the forest.
        self.parent: _Node | None = None
        # Dictionaries, not sets of nodes: their order does not depend on addresses.
        self.children: dict[_Node, None] = {}  # its children; empty for a context
        self.holding: dict[int, dict[_Node, None]] = {}  # its children by document that they add

    def attach(self, parent: "_Node") -> None:
        self.parent = parent
        parent.children[self] = None
        for document in self.own:
            parent.holding.setdefault(document, {})[self] = None

    def detach(self) -> None:
        parent = self.parent
        assert parent is not None, "the root cannot be detached"
        del parent.children[self]
        for document in self.own:
            holders = parent.holding[document]
            del holders[self]
            if not holders:
                del parent.holding[document]
        self.parent = None


class _Forest:
    """The contexts as leaves below one root, which shares nothing."""

    def __init__(self, rows: Rows, merges: Merges, rng: random.Random) -> None:
        self._tokens: list[int] = rows.tokens.tolist()
        self._rng = rng
        self._root = _Node(frozenset(), 0)
        self._contexts = [_members(row) for row in rows.documents]
        self._holders: dict[int, list[int]] = {}
        for position, context in enumerate(self._contexts):
            for document in context:
                self._holders.setdefault(document, []).append(position)
        self._leaves = [_Node(context, 0) for context in self._contexts]
        # How to undo the step so far: a node, its documents and parent before each change.
        self._changes: list[tuple[_Node, frozenset[int], int, _Node | None]] = []
        self._plant(merges)
        self._changes.clear()

    def step(self) -> None:
        """Remove a few related contexts and insert them again; undo it if tokens are lost."""
        moved = self._choose()
        saved = -sum(self._remove(self._leaves[position]) for position in moved)
        self._rng.shuffle(moved)
        for position in moved:
            saved += self._insert(self._leaves[position], self._contexts[position])
        if saved < 0:
            self._undo()
        self._changes.clear()

    def merges(self, width: int) -> Merges:
        """Return the forest as binary merges, each node's children one after another."""
        number = {leaf: position for position, leaf in enumerate(self._leaves)}
        left: list[int] = []
        right: list[int] = []
        shared: list[frozenset[int]] = []
        stack = [(child, child.own, False) for child in reversed(self._root.children)]
        while stack:
            node, documents, is_open = stack.pop()
            if not node.children:
                continue
            if not is_open:
                stack.append((node, documents, True))
                stack.extend((child, documents | child.own, False) for child in node.children)
                continue
            first, *others = (number[child] for child in node.children)
            for other in others:
                left.append(first)
                right.append(other)
                shared.append(documents)
                first = len(self._leaves) + len(left) - 1
            number[node] = first
        return Merges(_ints(left), _ints(right), _padded(shared, width))

    def _plant(self, merges: Merges) -> None:
        count = len(self._leaves)
        above = np.full(count + len(merges.left), -1)
        made = count + np.arange(len(merges.left))
        above[merges.left], above[merges.right] = made, made
        places: list[tuple[_Node, frozenset[int]]] = [(self._root, frozenset())] * len(above)
        for node in range(len(above) - 1, -1, -1):  # parents come after their children
            parent, inherited = places[above[node]] if above[node] >= 0 else (self._root, _NONE)
            if node < count:
                self._place(self._leaves[node], self._contexts[node] - inherited, parent)
                continue
            documents = _members(merges.shared[node - count])
            if documents == inherited:
                places[node] = parent, inherited
                continue
            inner = _Node(_NONE, 0)
            self._place(inner, documents - inherited, parent)
            places[node] = inner, documents

    def _choose(self) -> list[int]:
        rng = self._rng
        chosen = {rng.randrange(len(self._contexts)): None}
        for _ in range(rng.randint(1, _MOST_MOVED - 1)):
            context = self._contexts[rng.choice(list(chosen))]
            if context:
                document = rng.choice(sorted(context))
                chosen[rng.choice(self._holders[document])] = None
        return list(chosen)

    def _remove(self, leaf: _Node) -> int:
        """Remove a context; return the tokens that it saved."""
        parent = leaf.parent
        assert parent is not None, "the context has left already"
        saved = _path_tokens(parent)
        self._place(leaf, leaf.own, None)
        if parent is not self._root and len(parent.children) == 1:
            (only,) = parent.children
            above = parent.parent
            own = only.own | parent.own
            self._place(only, only.own, None)
            self._place(parent, parent.own, None)
            self._place(only, own, above)
        return saved

    def _insert(self, leaf: _Node, context: frozenset[int]) -> int:
        """Insert a context where it saves most; return the tokens that it saves."""
        saved, place = self._best_place(context)
        if place is None:
            self._place(leaf, context, self._root)
            return 0
        if not place.children or not place.own <= context:
            place = self._split(place, place.own & context)
        self._place(leaf, context - _path(place), place)
        return saved

    def _best_place(self, context: frozenset[int]) -> tuple[int, _Node | None]:
        best, place = 0, None
        tokens = self._tokens
        stack = [(self._root, 0)]
        while stack:
            node, above = stack.pop()
            common: dict[_Node, int] = {}
            holding = node.holding
            for document in context:
                for child in holding.get(document, ()):
                    common[child] = common.get(child, 0) + tokens[document]
            for child, shared in common.items():
                if child.children and shared == child.num_tokens:
                    stack.append((child, above + shared))
                if above + shared > best and self._rng.random() >= _BLINK:
                    best, place = above + shared, child
        return best, place

    def _split(self, node: _Node, common: frozenset[int]) -> _Node:
        """Put a node with a part of its documents above a node, and return it."""
        parent = node.parent
        middle = _Node(_NONE, 0)
        self._place(node, node.own, None)
        self._place(middle, common, parent)
        self._place(node, node.own - common, middle)
        return middle

    def _place(self, node: _Node, own: frozenset[int], parent: _Node | None) -> None:
        """Move a node below another one, or out of the forest; remember how to undo it."""
        self._changes.append((node, node.own, node.num_tokens, node.parent))
        if node.parent is not None:
            node.detach()
        if own != node.own or not node.num_tokens:
            node.own = own
            node.num_tokens = sum(self._tokens[document] for document in own)
        if parent is not None:
            node.attach(parent)

    def _undo(self) -> None:
        for node, own, num_tokens, parent in reversed(self._changes):
            if node.parent is not None:
                node.detach()
            node.own, node.num_tokens = own, num_tokens
            if parent is not None:
                node.attach(parent)


_NONE: frozenset[int] = frozenset()


def _members(row: NDArray[np.int32]) -> frozenset[int]:
    return frozenset(row[row >= 0].tolist())


def _path(node: _Node) -> frozenset[int]:
    documents = node.own
    while node.parent is not None:
        node = node.parent
        documents |= node.own
    return documents


def _path_tokens(node: _Node | None) -> int:
    total = 0
    while node is not None:
        total += node.num_tokens
        node = node.parent
    return total


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _padded(rows: Sequence[frozenset[int]], width: int) -> NDArray[np.int32]:
    padded = np.full((len(rows), width), -1, dtype=np.int32)
    for row, documents in zip(padded, rows, strict=True):
        row[: len(documents)] = sorted(documents)
    return padded
