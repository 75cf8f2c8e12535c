"""The stored dependency paths as a radix tree (DepCache section 4.2.1). A node holds a run of
tokens without a branch, and is used and evicted as a whole, once it has no children. Does not hold
tensors."""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ragboost.chunk_cache.eviction import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError
from ragboost.graph.layout import Layout, Run


@dataclass(slots=True, eq=False)
class CachedRun:
    key: int  # for the eviction policy
    tokens: tuple[int, ...]  # at least one; none in a root
    rows: list[int]  # one per token
    parent: "CachedRun | None"  # None for a root, and once evicted
    children: "dict[int, CachedRun]" = field(default_factory=dict)  # by their first token
    last_used: int = 0  # number of the last request that used it


Ranked = tuple[float, int, int, CachedRun]
"""Rank of a node for eviction, the smallest first, and the node."""


class Cursor(NamedTuple):
    node: CachedRun
    offset: int


class TreeMatch(NamedTuple):
    slots: list[int]  # in the layout, ascending
    rows: list[int]  # in the pool
    nodes: list[CachedRun]  # each once, after its parent; parts that begin alike share nodes


class TreePlaces(NamedTuple):
    slots: list[int]  # of the layout, newly stored
    rows: list[int]  # for their KV


class TreeRequest(NamedTuple):
    tree: Hashable
    layout: Layout

    def runs(self) -> Iterator[tuple[int, Run]]:
        for index, run in enumerate(self.layout.runs):
            if run.has_path and run.start < self.layout.task:
                yield index, run


class TreeCache:
    """A bounded set of dependency paths, for one thread."""

    def __init__(self, num_rows: int, policy: EvictionPolicy) -> None:
        if num_rows < 1:
            raise ChunkCacheError(f"the tree cache must hold at least 1 token, got {num_rows}")
        self.num_rows = num_rows
        self.num_evicted = 0  # tokens, so far
        # Returns the waiting requests, the next first, for policies that look ahead.
        self.waiting: Callable[[], Sequence[TreeRequest]] = tuple
        self._policy = policy
        self._trees: dict[Hashable, CachedRun] = {}
        self._clock = 0
        self._next_key = 0
        self.clear()

    @property
    def num_tokens(self) -> int:
        return self.num_rows - len(self._free)

    def match(self, request: TreeRequest) -> TreeMatch:
        """Return the stored part of a layout without counting it as a use."""
        match = TreeMatch([], [], [])
        root = self._trees.get(request.tree)
        if root is None:
            return match
        nodes: dict[int, CachedRun] = {}
        ends = {-1: Cursor(root, 0)}  # by the run that ends there
        for index, run in request.runs():
            if (cursor := ends.get(run.parent)) is None:
                continue
            at = run.start
            for node, first, last in _walk(cursor, request.layout, run):
                match.slots.extend(range(at, at + last - first))
                match.rows.extend(node.rows[first:last])
                nodes.setdefault(node.key, node)
                at, cursor = at + last - first, Cursor(node, last)
            if at == run.stop:
                ends[index] = cursor
        match.nodes.extend(nodes.values())
        return match

    def insert(self, request: TreeRequest, match: TreeMatch) -> TreePlaces:
        """Count the use of the stored part, the current `match`, and allocate rows for the rest,
        evicting nodes that it does not use. What does not fit is not stored. The caller fills the
        rows."""
        self._clock += 1
        for node in match.nodes:
            self._use(node, is_hit=True)
        count = sum(run.stop - run.start for _, run in request.runs()) - len(match.slots)
        self._make_room(count, {node.key for node in match.nodes})
        places = TreePlaces([], [])
        root = self._trees.get(request.tree) or self._new(None, (), [])
        ends = {-1: Cursor(root, 0)}
        for index, run in request.runs():
            if (cursor := ends.get(run.parent)) is None:
                continue
            # run.start                at                          run.stop
            # |  stored, up to cursor  |  a new node, if it fits   |
            at = run.start
            for node, first, last in _walk(cursor, request.layout, run):
                at, cursor = at + last - first, Cursor(node, last)
            if count := run.stop - at:
                if count > len(self._free):
                    continue
                rows = [self._free.pop() for _ in range(count)]
                parent = self._split(cursor, ends)
                node = self._new(parent, tuple(request.layout.tokens[at : run.stop]), rows)
                places.slots.extend(range(at, run.stop))
                places.rows.extend(rows)
                cursor = Cursor(node, count)
            ends[index] = cursor
        if root.children:
            self._trees[request.tree] = root
        return places

    def clear(self) -> None:
        for root in self._trees.values():
            for node in _below(root):
                self._policy.evicted(node.key)
        self._trees.clear()
        self._free = list(range(self.num_rows))

    def _new(self, parent: CachedRun | None, tokens: tuple[int, ...], rows: list[int]) -> CachedRun:
        node = CachedRun(self._next_key, tokens, rows, parent)
        self._next_key += 1
        if parent is not None:
            parent.children[tokens[0]] = node
            self._use(node, is_hit=False)
        return node

    def _use(self, node: CachedRun, *, is_hit: bool) -> None:
        node.last_used = self._clock
        size = len(node.tokens)
        self._policy.used(node.key, Use(self._clock, size=size, cost=size, is_hit=is_hit))

    def _split(self, cursor: Cursor, ends: dict[int, Cursor]) -> CachedRun:
        """Return a node that ends at the cursor, splitting the node there. The lower part is new,
        as is its history; `ends` that lie in it move with it."""
        node, offset = cursor
        if offset == len(node.tokens):
            return node
        tokens, rows, children = node.tokens, node.rows, node.children
        node.tokens, node.rows, node.children = tokens[:offset], rows[:offset], {}
        lower = self._new(node, tokens[offset:], rows[offset:])
        lower.children = children
        for child in children.values():
            child.parent = lower
        for index, end in ends.items():
            if end.node is node and end.offset > offset:
                ends[index] = Cursor(lower, end.offset - offset)
        return node

    def _make_room(self, count: int, used: Collection[int]) -> None:
        """Evict nodes, but none of these keys, until `count` rows are free."""
        if count <= len(self._free):
            return
        if self._policy.sees_queue:
            waiting = [[node.key for node in self.match(r).nodes] for r in self.waiting()]
            self._policy.look_ahead(waiting)
        nodes = (node for root in self._trees.values() for node in _below(root))
        leaves = [self._ranked(node) for node in nodes if _is_evictable(node, used)]
        heapq.heapify(leaves)
        while leaves and count > len(self._free):
            node = heapq.heappop(leaves)[-1]
            parent = node.parent
            assert parent is not None, "a root has no rows"
            self._evict(node)
            if _is_evictable(parent, used):
                heapq.heappush(leaves, self._ranked(parent))
        self._trees = {name: root for name, root in self._trees.items() if root.children}

    def _ranked(self, node: CachedRun) -> Ranked:
        # Ties: the least recently used, then the newest node, since deep nodes are newer.
        return self._policy.priority(node.key), node.last_used, -node.key, node

    def _evict(self, node: CachedRun) -> None:
        assert node.parent is not None, "a root is not evicted"
        del node.parent.children[node.tokens[0]]
        self._policy.evicted(node.key)
        self._free.extend(node.rows)
        self.num_evicted += len(node.rows)
        node.parent = None


def _is_evictable(node: CachedRun, used: Collection[int]) -> bool:
    return not node.children and node.parent is not None and node.key not in used


def _walk(cursor: Cursor, layout: Layout, run: Run) -> Iterator[tuple[CachedRun, int, int]]:
    """Yield the nodes along a run's tokens from the cursor, and the range of offsets in each."""
    (node, offset), tokens = cursor, layout.tokens
    start, stop = run.start, run.stop
    while start < stop:
        if offset == len(node.tokens):
            child = node.children.get(tokens[start])
            if child is None:
                return
            node, offset = child, 0
        first = offset
        while offset < len(node.tokens) and start < stop:
            if node.tokens[offset] != tokens[start]:
                break
            offset, start = offset + 1, start + 1
        if offset > first:
            yield node, first, offset
        if offset < len(node.tokens):
            return


def _below(root: CachedRun) -> Iterator[CachedRun]:
    todo = list(root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()
