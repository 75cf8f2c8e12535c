"""The stored dependency paths as a radix tree (DepCache section 4.2.1). A node holds a run of
tokens without a branch, and is used, demoted and evicted as a whole, once it has no children in its
tier: the fast tier is the upper part of the tree. Does not hold tensors."""

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError
from ragboost.graph.layout import Layout, Run

# Rows of the pool. A node's rows are all in one tier, its parent's never in a slower one:
#
# 0                         num_rows                   num_rows + num_host_rows
# |  on the model's device  |  in host memory          |
# |  evicted  <---------------  evicted, with a node above it, or for room
# |           demote -->    |                          |
# |           <-- promote   |                          |


@dataclass(slots=True, eq=False)
class CachedRun:
    key: int  # for the eviction policy
    tokens: tuple[int, ...]  # at least one; none in a root
    rows: list[int]  # one per token
    parent: "CachedRun | None"  # None for a root, and once evicted
    children: "dict[int, CachedRun]" = field(default_factory=dict)  # by their first token
    last_used: int = 0  # number of the last request that used it


Ranked = tuple[float, int, int, CachedRun]
"""Rank of a node for demotion and eviction, the smallest first, and the node."""


class Cursor(NamedTuple):
    node: CachedRun
    offset: int


class TreeMatch(NamedTuple):
    slots: list[int]  # in the layout, ascending
    rows: list[int]  # in the pool
    nodes: list[CachedRun]  # each once, after its parent; parts that begin alike share nodes


class RowMoves(NamedTuple):
    sources: list[int]
    targets: list[int]


class TreePlaces(NamedTuple):
    demoted: RowMoves
    promoted: RowMoves
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
    """A bounded set of dependency paths, for one thread. Nodes that do not fit are demoted to the
    host tier (DepCache section 4.2.2), and promoted when they are used."""

    def __init__(self, num_rows: int, policy: EvictionPolicy, *, num_host_rows: int = 0) -> None:
        if num_rows < 1:
            raise ChunkCacheError(f"the tree cache must hold at least 1 token, got {num_rows}")
        self.num_rows = num_rows
        self.num_host_rows = num_host_rows
        self.num_evicted = self.num_demoted = 0  # tokens, so far
        # Returns the waiting requests, the next first, for policies that look ahead.
        self.waiting: Callable[[], Sequence[TreeRequest]] = tuple
        self._policy = policy
        self._trees: dict[Hashable, CachedRun] = {}
        self._clock = 0
        self._next_key = 0
        self.clear()

    @property
    def num_tokens(self) -> int:
        free = len(self._free) + len(self._free_host)
        return self.num_rows + self.num_host_rows - free

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
        """Count the use of the stored part, the current `match`, promote it, and allocate rows for
        the rest, evicting nodes that it does not use. What does not fit is not stored. The caller
        copies and fills the rows."""
        self._clock += 1
        for node in match.nodes:
            self._use(node, is_hit=True)
        below = [node for node in match.nodes if self._is_host(node)]
        count = sum(run.stop - run.start for _, run in request.runs()) - len(match.slots)
        count += sum(len(node.rows) for node in below)
        demoted = self._make_room(count, {node.key for node in match.nodes})
        places = TreePlaces(demoted, self._promote(below), [], [])
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
                # Nothing stands above what it continues, or it could not be demoted.
                if count > len(self._free) or self._is_host(cursor.node):
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
        end = self.num_rows + self.num_host_rows
        self._free, self._free_host = list(range(self.num_rows)), list(range(self.num_rows, end))

    def check_integrity(self) -> None:
        rows = [*self._free, *self._free_host]
        if any(row >= self.num_rows for row in self._free):
            raise ChunkCacheError(f"rows of the tier below {self.num_rows} are free above it")
        for root in self._trees.values():
            if not root.children:
                raise ChunkCacheError("a tree without paths is kept")
            for node in _below(root):
                rows += node.rows
                parent = node.parent
                if len(node.rows) != len(node.tokens) or not node.tokens:
                    raise ChunkCacheError(
                        f"node {node.key} has {len(node.tokens)} tokens in {len(node.rows)} rows"
                    )
                if parent is None or parent.children.get(node.tokens[0]) is not node:
                    raise ChunkCacheError(f"node {node.key} is not the child of its parent")
                tiers = {row >= self.num_rows for row in node.rows}
                if len(tiers) != 1 or self._is_host(parent) > self._is_host(node):
                    raise ChunkCacheError(f"node {node.key} is in two tiers, or above its parent")
        size = self.num_rows + self.num_host_rows
        if sorted(rows) != list(range(size)):
            raise ChunkCacheError(
                f"{len(rows)} rows are free or in use, {len(set(rows))} of them different, of "
                f"{size}"
            )

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

    def _is_host(self, node: CachedRun) -> bool:
        return bool(node.rows) and node.rows[0] >= self.num_rows

    def _promote(self, nodes: Sequence[CachedRun]) -> RowMoves:
        moves = RowMoves([], [])
        for node in nodes:
            assert node.parent is not None, "a root has no rows"
            if len(node.rows) <= len(self._free) and not self._is_host(node.parent):
                _move(node, self._free, self._free_host, moves)
        return moves

    def _make_room(self, count: int, used: Collection[int]) -> RowMoves:
        """Demote or evict nodes, but none of these keys, until `count` rows are free above."""
        moves = RowMoves([], [])
        if count <= len(self._free):
            return moves
        if self._policy.sees_queue:
            waiting = [[node.key for node in self.match(r).nodes] for r in self.waiting()]
            self._policy.look_ahead(waiting)
        above = self._lowest(self._nodes(is_host=False), used)
        below = self._lowest(self._nodes(is_host=True), used)
        while above and count > len(self._free):
            node = heapq.heappop(above)[-1]
            parent = node.parent
            assert parent is not None, "a root has no rows"
            if self._free_below(len(node.rows), below, used):
                self.num_demoted += len(node.rows)
                _move(node, self._free_host, self._free, moves)
            else:
                self._evict(node)
            for ranked in self._lowest([parent], used):
                heapq.heappush(above, ranked)
        self._trees = {name: root for name, root in self._trees.items() if root.children}
        return moves

    def _free_below(self, count: int, below: list[Ranked], used: Collection[int]) -> bool:
        if count > self.num_host_rows:
            return False
        while count > len(self._free_host) and below:
            node = heapq.heappop(below)[-1]
            parent = node.parent
            if parent is None:  # evicted with a node above it
                continue
            self._evict(node)
            if self._is_host(parent):
                for ranked in self._lowest([parent], used):
                    heapq.heappush(below, ranked)
        return count <= len(self._free_host)

    def _nodes(self, *, is_host: bool) -> Iterator[CachedRun]:
        for root in self._trees.values():
            yield from (node for node in _below(root) if self._is_host(node) == is_host)

    def _lowest(self, nodes: Iterable[CachedRun], used: Collection[int]) -> list[Ranked]:
        heap: list[Ranked] = []
        for node in nodes:
            tier = self._is_host(node)
            is_lowest = all(self._is_host(child) != tier for child in node.children.values())
            if is_lowest and node.parent is not None and node.key not in used:
                # Ties: the least recently used, then the newest node, since deep nodes are newer.
                priority = self._policy.priority(node.key)
                heap.append((priority, node.last_used, -node.key, node))
        heapq.heapify(heap)
        return heap

    def _evict(self, node: CachedRun) -> None:
        """Evict a node, with what is below it in the lower tier."""
        assert node.parent is not None, "a root is not evicted"
        del node.parent.children[node.tokens[0]]
        for evicted in [node, *_below(node)]:
            self._policy.evicted(evicted.key)
            (self._free_host if self._is_host(evicted) else self._free).extend(evicted.rows)
            self.num_evicted += len(evicted.rows)
            evicted.parent = None


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


def _move(node: CachedRun, free: list[int], freed: list[int], moves: RowMoves) -> None:
    targets = [free.pop() for _ in node.rows]
    moves.sources.extend(node.rows)
    moves.targets.extend(targets)
    freed += node.rows
    node.rows = targets


def _below(root: CachedRun) -> Iterator[CachedRun]:
    todo = list(root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()
