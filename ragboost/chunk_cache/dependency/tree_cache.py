"""The stored dependency paths as a radix tree (DepCache section 4.2.1).

A node holds a run of tokens without a branch, and is used and evicted as a whole. Only leaves are
evicted, so that everything stored stays reachable. Knows tokens, rows of a pool and policies. Does
not hold tensors.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ragboost.chunk_cache.dependency.layout import Layout, Run
from ragboost.chunk_cache.eviction.base import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError


@dataclass(slots=True, eq=False)
class CachedRun:
    """A node of the tree.

    Attributes:
        key: key for the eviction policy.
        tokens: token ids, at least one; none in a root.
        rows: row of the pool for each token.
        parent: parent node; None for a root.
        children: child nodes by their first token.
        last_used: number of the last request that used it.
    """

    key: int
    tokens: tuple[int, ...]
    rows: list[int]
    parent: "CachedRun | None"
    children: "dict[int, CachedRun]" = field(default_factory=dict)
    last_used: int = 0


class Cursor(NamedTuple):
    """A place in the tree: after the first `offset` tokens of a node."""

    node: CachedRun
    offset: int


class TreeMatch(NamedTuple):
    """The stored part of a layout.

    Attributes:
        slots, rows: slot in the layout, ascending, and row in the pool of each stored token.
        nodes: their nodes, each after its parent.
    """

    slots: list[int]
    rows: list[int]
    nodes: list[CachedRun]


class TreeRequest(NamedTuple):
    """A layout and the name of its tree: KV is shared only within a tree."""

    tree: Hashable
    layout: Layout


class TreeCache:
    """A bounded set of dependency paths. Not safe to use from several threads.

    Args:
        num_rows: capacity in tokens.
        policy: ranks the leaves for eviction.
        waiting: returns the waiting requests, the next first; called before an eviction if the
            policy looks ahead.

    Attributes:
        num_evicted: tokens evicted so far.
    """

    def __init__(
        self,
        num_rows: int,
        policy: EvictionPolicy,
        *,
        waiting: Callable[[], Sequence[TreeRequest]] = tuple,
    ) -> None:
        if num_rows < 1:
            raise ChunkCacheError(f"the tree cache must hold at least 1 token, got {num_rows}")
        self.num_rows = num_rows
        self.num_evicted = 0
        self.waiting = waiting
        self._policy = policy
        self._free = list(range(num_rows))
        self._trees: dict[Hashable, CachedRun] = {}
        self._clock = 0
        self._next_key = 0

    @property
    def num_tokens(self) -> int:
        """Number of stored tokens."""
        return self.num_rows - len(self._free)

    def match(self, request: TreeRequest) -> TreeMatch:
        """Return the stored part of a layout without counting it as a use."""
        found = TreeMatch([], [], [])
        root = self._trees.get(request.tree)
        ends: list[Cursor | None] = []
        for run in request.layout.runs:
            if root is None or not run.is_chain or run.start >= request.layout.task:
                ends.append(None)
                continue
            at, cursor = run.start, Cursor(root, 0) if run.parent < 0 else ends[run.parent]
            for node, first, last in self._walk(cursor, request.layout, run):
                found.slots.extend(range(at, at + last - first))
                found.rows.extend(node.rows[first:last])
                if first == 0:
                    found.nodes.append(node)
                at, cursor = at + last - first, Cursor(node, last)
            ends.append(cursor if at == run.stop else None)
        return found

    def insert(self, request: TreeRequest, found: TreeMatch) -> tuple[list[int], list[int]]:
        """Count the use of the stored part, and allocate rows for the rest, evicting as needed.

        Nodes that the request uses are not evicted for the rest of it; runs that do not fit are not
        stored.

        Args:
            request: the matched request.
            found: its match; nothing may have been inserted since.

        Returns:
            New slots of the layout, and their rows, which the caller fills.
        """
        self._clock += 1
        for node in found.nodes:
            self._use(node, is_hit=True)
        wanted = sum(
            run.stop - run.start
            for run in request.layout.runs
            if run.is_chain and run.start < request.layout.task
        )
        self._make_room(wanted - len(found.slots), {node.key for node in found.nodes})
        slots: list[int] = []
        rows: list[int] = []
        root = self._trees.get(request.tree)
        if root is None:
            root = self._trees[request.tree] = self._new(None, (), [])
        ends: list[Cursor | None] = []
        for run in request.layout.runs:
            if not run.is_chain or run.start >= request.layout.task:
                ends.append(None)
                continue
            at, cursor = run.start, Cursor(root, 0) if run.parent < 0 else ends[run.parent]
            for node, first, last in self._walk(cursor, request.layout, run):
                at, cursor = at + last - first, Cursor(node, last)
            count = run.stop - at
            if count and (cursor is None or count > len(self._free)):
                ends.append(None)
                continue
            if count and cursor is not None:
                taken = [self._free.pop() for _ in range(count)]
                parent = self._split(cursor)
                tokens = tuple(request.layout.tokens[at : run.stop])
                node = self._new(parent, tokens, taken)
                slots += range(at, run.stop)
                rows += taken
                cursor = Cursor(node, count)
            ends.append(cursor)
        if not root.children:
            del self._trees[request.tree]
        return slots, rows

    def clear(self) -> None:
        """Remove all paths."""
        for root in self._trees.values():
            for node in list(_below(root)):
                self._policy.evicted(node.key)
        self._trees.clear()
        self._free = list(range(self.num_rows))

    def check_integrity(self) -> None:
        """Check nodes, links and rows.

        Raises:
            ChunkCacheError: they are inconsistent; the message has the numbers.
        """
        rows = list(self._free)
        for root in self._trees.values():
            for node in _below(root):
                rows += node.rows
                parent = node.parent
                if len(node.rows) != len(node.tokens) or not node.tokens:
                    raise ChunkCacheError(
                        f"node {node.key} has {len(node.tokens)} tokens in {len(node.rows)} rows"
                    )
                if parent is None or parent.children.get(node.tokens[0]) is not node:
                    raise ChunkCacheError(f"node {node.key} is not the child of its parent")
        if sorted(rows) != list(range(self.num_rows)):
            raise ChunkCacheError(
                f"{len(rows)} rows are free or in use, {len(set(rows))} of them different, of "
                f"{self.num_rows}"
            )

    def _walk(
        self, cursor: Cursor | None, layout: Layout, run: Run
    ) -> Iterator[tuple[CachedRun, int, int]]:
        """Yield the nodes along a run's tokens, and the range of offsets in each."""
        if cursor is None:
            return
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

    def _split(self, cursor: Cursor) -> CachedRun:
        """Return a node that ends at the cursor, splitting the node there. The lower part becomes a
        new node, whose history begins with this request."""
        node, offset = cursor
        if offset == len(node.tokens):
            return node
        lower = CachedRun(
            self._next_key, node.tokens[offset:], node.rows[offset:], node, node.children
        )
        self._next_key += 1
        for child in lower.children.values():
            child.parent = lower
        node.tokens, node.rows = node.tokens[:offset], node.rows[:offset]
        node.children = {lower.tokens[0]: lower}
        self._use(lower, is_hit=False)
        return node

    def _make_room(self, count: int, held: set[int]) -> None:
        if count <= len(self._free):
            return
        if self._policy.sees_queue:
            waiting = [[node.key for node in self.match(one).nodes] for one in self.waiting()]
            self._policy.look_ahead(waiting)
        leaves = [
            self._rank(node)
            for root in self._trees.values()
            for node in _below(root)
            if not node.children and node.key not in held
        ]
        heapq.heapify(leaves)
        while leaves and count > len(self._free):
            node = heapq.heappop(leaves)[-1]
            parent = self._evict(node)
            if not parent.children and parent.parent is not None and parent.key not in held:
                heapq.heappush(leaves, self._rank(parent))

    def _rank(self, node: CachedRun) -> tuple[float, int, int, CachedRun]:
        # Ties: the least recently used, then the newest node, since deep nodes are newer.
        return (self._policy.priority(node.key), node.last_used, -node.key, node)

    def _evict(self, node: CachedRun) -> CachedRun:
        """Evict a leaf and return its parent."""
        assert node.parent is not None, "a root is not a leaf"
        assert not node.children, "only leaves are evicted"
        self._policy.evicted(node.key)
        self._free += node.rows
        self.num_evicted += len(node.rows)
        del node.parent.children[node.tokens[0]]
        return node.parent


def _below(root: CachedRun) -> Iterator[CachedRun]:
    todo = list(root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()
