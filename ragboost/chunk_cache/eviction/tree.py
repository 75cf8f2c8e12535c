"""A cache of nodes behind prefixes, leaf-only eviction, any policy: to measure policies with.

Knows nodes, parents and sizes. Holds no KV. A request uses a set of nodes that is closed under
parents: one path for a prompt of ordered documents, several for the subgraphs of a graph query
(DepCache section 4.2.1), roots alone for chunks that are reused anywhere.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.chunk_cache.eviction.base import Replacement, Use
from ragboost.errors import ChunkCacheError

ROOT = -1


class Forest:
    """All nodes that requests may use, by number; a node is a name behind its parent.

    Attributes:
        parents: of each node; ROOT where there is none.
        sizes: tokens of each node.
    """

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.sizes: list[int] = []
        self._numbers: dict[tuple[int, Hashable], int] = {}

    def path(self, names: Iterable[Hashable], sizes: Iterable[int]) -> list[int]:
        """Return the nodes along a path from a root, adding those that are new."""
        nodes, parent = [], ROOT
        for name, size in zip(names, sizes, strict=True):
            node = self._numbers.setdefault((parent, name), len(self.parents))
            if node == len(self.parents):
                self.parents.append(parent)
                self.sizes.append(size)
            nodes.append(node)
            parent = node
        return nodes


@dataclass(frozen=True, slots=True)
class PrefillCost:
    """Seconds of a prefill: linear in its tokens, plus attention to the tokens in front.

    The defaults are the shape of an 8B model, where attention costs as much as the rest at some
    60,000 tokens.
    """

    per_token: float = 1.0
    per_pair: float = 1 / 30_000

    def seconds(self, num_tokens: float, *, behind: float = 0.0) -> float:
        """Cost of `num_tokens` tokens that stand behind others."""
        return num_tokens * (self.per_token + self.per_pair * (behind + num_tokens / 2))


class Served(NamedTuple):
    """What a request found."""

    cached_tokens: int
    prompt_tokens: int


class CacheTree:
    """A bounded cache over a forest.

    Args:
        forest: the nodes.
        policy: which leaf goes first.
        capacity: tokens that fit.
        cost: what computing costs, for policies that ask.
    """

    def __init__(
        self,
        forest: Forest,
        policy: Replacement,
        *,
        capacity: int,
        cost: PrefillCost | None = None,
    ) -> None:
        if capacity < 1:
            raise ChunkCacheError(f"capacity must be at least 1 token, got {capacity}")
        self.num_tokens = 0
        self.policy = policy
        self._forest, self._capacity = forest, capacity
        self._cost = cost or PrefillCost()
        self._last_used: dict[int, int] = {}  # resident nodes
        self._num_children: dict[int, int] = {}
        self._clock = 0
        # Leaves by rank. An entry is stale, and dropped when it is popped, once its node has been
        # used again, got a child, or gone.
        self._leaves: list[tuple[float, int, int, int]] = []

    def __contains__(self, node: int) -> bool:
        return node in self._last_used

    def cached_tokens(self, nodes: Iterable[int]) -> int:
        """Return how many tokens of a request are resident. Changes nothing."""
        return sum(self._forest.sizes[node] for node in nodes if node in self._last_used)

    def request(self, nodes: Sequence[int]) -> Served:
        """Serve a request: use what is resident, then store the rest as far as there is room.

        Args:
            nodes: each behind its parent. None of them is evicted for another.
        """
        self._clock += 1
        if self.policy.sees_queue:  # priorities have changed without a use
            self._leaves = [self._rank(node) for node in self._last_used if self._is_leaf(node)]
            heapq.heapify(self._leaves)
        held = set(nodes)
        cached = behind = 0
        for node in nodes:
            size = self._forest.sizes[node]
            is_hit = node in self._last_used
            if is_hit:
                cached += size
            if is_hit or (self._make_room(size, held) and self._has_parent(node)):
                cost = self._cost.seconds(size, behind=behind)
                self.policy.used(node, Use(self._clock, size, cost, is_hit))
                self._keep(node)
            behind += size
        for node in nodes:
            if node in self._last_used and self._is_leaf(node):
                heapq.heappush(self._leaves, self._rank(node))
        return Served(cached, behind)

    def check_integrity(self) -> None:
        """Raise where a node has lost its parent, or the sizes do not add up.

        Raises:
            ChunkCacheError: with the numbers.
        """
        total = self.cached_tokens(list(self._last_used))
        orphans = [node for node in self._last_used if not self._has_parent(node)]
        if total != self.num_tokens or total > self._capacity or orphans:
            raise ChunkCacheError(
                f"{total} tokens resident, {self.num_tokens} on the books, {self._capacity} "
                f"allowed, orphans {orphans[:5]}"
            )

    def _has_parent(self, node: int) -> bool:
        parent = self._forest.parents[node]
        return parent == ROOT or parent in self._last_used

    def _is_leaf(self, node: int) -> bool:
        return not self._num_children.get(node)

    def _keep(self, node: int) -> None:
        if node not in self._last_used:
            self.num_tokens += self._forest.sizes[node]
            parent = self._forest.parents[node]
            if parent != ROOT:
                self._num_children[parent] = self._num_children.get(parent, 0) + 1
        self._last_used[node] = self._clock

    def _make_room(self, size: int, held: set[int]) -> bool:
        while self._leaves and self.num_tokens + size > self._capacity:
            _, last_used, _, node = heapq.heappop(self._leaves)
            is_stale = self._last_used.get(node) != last_used or not self._is_leaf(node)
            if not is_stale and node not in held:
                self._evict(node, held)
        return self.num_tokens + size <= self._capacity

    def _rank(self, node: int) -> tuple[float, int, int, int]:
        # Of equals the least recently used, then the youngest node: deep ones are young.
        return (self.policy.priority(node), self._last_used[node], -node, node)

    def _evict(self, node: int, held: set[int]) -> None:
        del self._last_used[node]
        self.num_tokens -= self._forest.sizes[node]
        self.policy.evicted(node)
        parent = self._forest.parents[node]
        if parent == ROOT:
            return
        self._num_children[parent] -= 1
        if self._is_leaf(parent) and parent not in held:
            heapq.heappush(self._leaves, self._rank(parent))
