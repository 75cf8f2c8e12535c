"""The stored dependency paths as a radix tree (DepCache section 4.2.1).

A node holds a run of tokens without a branch, and is used, demoted and evicted as a whole. Only
nodes without children in the same tier leave it, so that everything stored stays reachable, and the
nodes of the fast tier are the upper part of the tree. Knows tokens, rows of a pool and policies.
Does not hold tensors.
"""

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError
from ragboost.graph.layout import Layout, Run


@dataclass(slots=True, eq=False)
class CachedRun:
    """A node of the tree.

    Attributes:
        key: key for the eviction policy.
        tokens: token ids, at least one; none in a root.
        rows: row of the pool for each token, all in one tier.
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


Ranked = tuple[float, int, int, CachedRun]
"""Rank of a node for demotion and eviction, the smallest first, and the node."""


class Cursor(NamedTuple):
    """A place in the tree: after the first `offset` tokens of a node."""

    node: CachedRun
    offset: int


class TreeMatch(NamedTuple):
    """The stored part of a layout.

    Attributes:
        slots, rows: slot in the layout, ascending, and row in the pool of each stored token.
        nodes: their nodes, each once and after its parent; parts of a prompt that begin alike share
            nodes.
    """

    slots: list[int]
    rows: list[int]
    nodes: list[CachedRun]


class RowMoves(NamedTuple):
    """Rows to copy within the pool, each from one tier to the other."""

    sources: list[int]
    targets: list[int]


class TreePlaces(NamedTuple):
    """Result of `insert`, in the order in which the caller copies KV.

    Attributes:
        demoted, promoted: rows of nodes that moved.
        slots, rows: new slots of the layout, and their rows in the pool.
    """

    demoted: RowMoves
    promoted: RowMoves
    slots: list[int]
    rows: list[int]


class TreeRequest(NamedTuple):
    """A layout and the name of its tree: KV is shared only within a tree."""

    tree: Hashable
    layout: Layout


class TreeCache:
    """A bounded set of dependency paths. Not safe to use from several threads.

    Args:
        num_rows: capacity in tokens, of the tier that requests are computed in.
        policy: ranks the nodes for eviction and demotion.
        num_host_rows: capacity of the tier below, numbered from `num_rows` on. Nodes that do not
            fit above are demoted to it (DepCache section 4.2.2), and promoted when they are used.
        waiting: returns the waiting requests, the next first; called before an eviction if the
            policy looks ahead.

    Attributes:
        num_evicted, num_demoted: tokens evicted and demoted so far.
    """

    def __init__(
        self,
        num_rows: int,
        policy: EvictionPolicy,
        *,
        num_host_rows: int = 0,
        waiting: Callable[[], Sequence[TreeRequest]] = tuple,
    ) -> None:
        if num_rows < 1:
            raise ChunkCacheError(f"the tree cache must hold at least 1 token, got {num_rows}")
        self.num_rows = num_rows
        self.num_host_rows = num_host_rows
        self.num_evicted = self.num_demoted = 0
        self.waiting = waiting
        self._policy = policy
        self._free = list(range(num_rows))
        self._free_host = list(range(num_rows, num_rows + num_host_rows))
        self._trees: dict[Hashable, CachedRun] = {}
        self._clock = 0
        self._next_key = 0

    @property
    def num_tokens(self) -> int:
        """Number of stored tokens, in both tiers."""
        free = len(self._free) + len(self._free_host)
        return self.num_rows + self.num_host_rows - free

    def match(self, request: TreeRequest) -> TreeMatch:
        """Return the stored part of a layout without counting it as a use."""
        found = TreeMatch([], [], [])
        known: set[int] = set()
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
                if node.key not in known:
                    known.add(node.key)
                    found.nodes.append(node)
                at, cursor = at + last - first, Cursor(node, last)
            ends.append(cursor if at == run.stop else None)
        return found

    def insert(self, request: TreeRequest, found: TreeMatch) -> TreePlaces:
        """Count the use of the stored part, promote it, and allocate rows for the rest, evicting as
        needed.

        Nodes that the request uses are not evicted for the rest of it; runs that do not fit are not
        stored, and nodes that do not fit stay where they are.

        Args:
            request: the matched request.
            found: its match; nothing may have been inserted since.

        Returns:
            Rows to copy and to fill; the caller does both.
        """
        self._clock += 1
        for node in found.nodes:
            self._use(node, is_hit=True)
        wanted = sum(
            run.stop - run.start
            for run in request.layout.runs
            if run.is_chain and run.start < request.layout.task
        )
        below = [node for node in found.nodes if self._is_host(node)]
        count = wanted - len(found.slots) + sum(len(node.rows) for node in below)
        demoted = self._make_room(count, {node.key for node in found.nodes})
        promoted = self._promote(below)
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
            # Nothing stands above what it continues, or it could not be demoted.
            has_room = count <= len(self._free) and not (cursor and self._is_host(cursor.node))
            if count and (cursor is None or not has_room):
                ends.append(None)
                continue
            if count and cursor is not None:
                taken = [self._free.pop() for _ in range(count)]
                parent = self._split(cursor, ends)
                tokens = tuple(request.layout.tokens[at : run.stop])
                node = self._new(parent, tokens, taken)
                slots += range(at, run.stop)
                rows += taken
                cursor = Cursor(node, count)
            ends.append(cursor)
        if not root.children:
            del self._trees[request.tree]
        return TreePlaces(demoted, promoted, slots, rows)

    def clear(self) -> None:
        """Remove all paths."""
        for root in self._trees.values():
            for node in list(_below(root)):
                self._policy.evicted(node.key)
        self._trees.clear()
        end = self.num_rows + self.num_host_rows
        self._free, self._free_host = list(range(self.num_rows)), list(range(self.num_rows, end))

    def check_integrity(self) -> None:
        """Check nodes, links and rows.

        Raises:
            ChunkCacheError: they are inconsistent; the message has the numbers.
        """
        rows = [*self._free, *self._free_host]
        if any(row >= self.num_rows for row in self._free):
            raise ChunkCacheError(f"rows of the tier below {self.num_rows} are free above it")
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
                tiers = {row >= self.num_rows for row in node.rows}
                if len(tiers) != 1 or self._is_host(parent) > self._is_host(node):
                    raise ChunkCacheError(f"node {node.key} is in two tiers, or above its parent")
        size = self.num_rows + self.num_host_rows
        if sorted(rows) != list(range(size)):
            raise ChunkCacheError(
                f"{len(rows)} rows are free or in use, {len(set(rows))} of them different, of "
                f"{size}"
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

    def _split(self, cursor: Cursor, ends: list[Cursor | None]) -> CachedRun:
        """Return a node that ends at the cursor, splitting the node there. The lower part becomes a
        new node, whose history begins with this request; those of `ends` that lie in it move with
        it."""
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
        for number, end in enumerate(ends):
            if end is not None and end.node is node and end.offset > offset:
                ends[number] = Cursor(lower, end.offset - offset)
        return node

    def _is_host(self, node: CachedRun) -> bool:
        return bool(node.rows) and node.rows[0] >= self.num_rows

    def _promote(self, nodes: Sequence[CachedRun]) -> RowMoves:
        """Move nodes of one request up, each after its parent, as far as there is room."""
        moves = RowMoves([], [])
        for node in nodes:
            assert node.parent is not None, "a root has no rows"
            if len(node.rows) <= len(self._free) and not self._is_host(node.parent):
                self._move(node, self._free, self._free_host, moves)
        return moves

    def _move(self, node: CachedRun, free: list[int], freed: list[int], moves: RowMoves) -> None:
        targets = [free.pop() for _ in node.rows]
        moves.sources.extend(node.rows)
        moves.targets.extend(targets)
        freed += node.rows
        node.rows = targets

    def _make_room(self, count: int, held: set[int]) -> RowMoves:
        """Demote or evict nodes until `count` rows are free above; return the demoted rows."""
        moves = RowMoves([], [])
        if count <= len(self._free):
            return moves
        if self._policy.sees_queue:
            waiting = [[node.key for node in self.match(one).nodes] for one in self.waiting()]
            self._policy.look_ahead(waiting)
        above = self._lowest(held, is_host=False)
        below = self._lowest(held, is_host=True)
        while above and count > len(self._free):
            node = heapq.heappop(above)[-1]
            assert node.parent is not None, "a root has no rows"
            parent = node.parent
            if self._free_below(len(node.rows), below, held):
                self.num_demoted += len(node.rows)
                self._move(node, self._free_host, self._free, moves)
            else:
                self._evict(node)
            self._push_if_lowest(above, parent, held)
        return moves

    def _free_below(self, count: int, below: list[Ranked], held: set[int]) -> bool:
        """Evict nodes of the lower tier until `count` rows are free there; return whether they
        are."""
        if count > self.num_host_rows:
            return False
        while count > len(self._free_host) and below:
            node = heapq.heappop(below)[-1]
            if node.parent is None:  # evicted with a node above it
                continue
            parent = self._evict(node)
            if self._is_host(parent):
                self._push_if_lowest(below, parent, held)
        return count <= len(self._free_host)

    def _lowest(self, held: set[int], *, is_host: bool) -> list[Ranked]:
        """Return a heap of the nodes of a tier that have no children in it."""
        found: list[Ranked] = []
        for root in self._trees.values():
            for node in _below(root):
                if self._is_host(node) == is_host:
                    self._push_if_lowest(found, node, held)
        return found

    def _push_if_lowest(self, heap: list[Ranked], node: CachedRun, held: set[int]) -> None:
        is_root, tier = node.parent is None, self._is_host(node)
        if is_root or node.key in held:
            return
        if all(self._is_host(child) != tier for child in node.children.values()):
            heapq.heappush(heap, self._rank(node))

    def _rank(self, node: CachedRun) -> Ranked:
        # Ties: the least recently used, then the newest node, since deep nodes are newer.
        return (self._policy.priority(node.key), node.last_used, -node.key, node)

    def _evict(self, node: CachedRun) -> CachedRun:
        """Evict a node, with what is below it in the lower tier, and return its parent."""
        parent = node.parent
        assert parent is not None, "a root is not evicted"
        del parent.children[node.tokens[0]]
        for one in [node, *_below(node)]:
            self._policy.evicted(one.key)
            (self._free_host if self._is_host(one) else self._free).extend(one.rows)
            self.num_evicted += len(one.rows)
            one.parent = None
        return parent


def _below(root: CachedRun) -> Iterator[CachedRun]:
    todo = list(root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()
