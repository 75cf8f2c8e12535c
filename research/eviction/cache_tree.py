"""A simulated prefix cache with leaf-only eviction and any policy, to measure policies.

Knows nodes, parents and sizes; holds no KV. A request uses a set of nodes that contains their
parents: one path for a prompt of ordered documents, several for the subgraphs of a graph query
(DepCache section 4.2.1), or only roots for chunks that are reused anywhere.
"""

import heapq
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ragboost.chunk_cache.eviction.policy import EvictionPolicy, Use
from ragboost.errors import ChunkCacheError

ROOT = -1


class Forest:
    """All nodes that requests use, by number."""

    def __init__(self) -> None:
        self.parents: list[int] = []
        self.sizes: list[int] = []
        self._numbers: dict[tuple[int, Hashable], int] = {}

    def path(self, names: Iterable[Hashable], sizes: Iterable[int]) -> list[int]:
        """Return the nodes along a path from a root, adding new ones."""
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
    """The duration of a prefill: linear in its tokens, plus attention to earlier tokens.

    The defaults have the shape of an 8B model, whose attention costs as much as the rest at about
    60,000 tokens.
    """

    per_token: float = 1.0
    per_pair: float = 1 / 30_000

    def seconds(self, num_tokens: float, *, prefix: float = 0.0) -> float:
        """Return the cost of `num_tokens` tokens after a prefix of `prefix` tokens."""
        return num_tokens * (self.per_token + self.per_pair * (prefix + num_tokens / 2))


class Served(NamedTuple):
    """The result of a request."""

    cached_tokens: int
    prompt_tokens: int


class CacheTree:
    """A bounded cache over a forest."""

    def __init__(
        self,
        forest: Forest,
        policy: EvictionPolicy,
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
        # Leaves by rank. An entry becomes stale, and is dropped when popped, if its node was used
        # again, got a child, or was evicted.
        self._leaves: list[tuple[float, int, int, int]] = []

    def __contains__(self, node: int) -> bool:
        return node in self._last_used

    def cached_tokens(self, nodes: Iterable[int]) -> int:
        """Return the number of cached tokens of a request, without counting it as a use."""
        return sum(self._forest.sizes[node] for node in nodes if node in self._last_used)

    def request(self, nodes: Sequence[int]) -> Served:
        """Serve a request: use cached nodes, and store the others if there is room.

        Args:
            nodes: nodes, each after its parent. None of them is evicted for another.
        """
        self._clock += 1
        if self.policy.sees_queue:  # priorities have changed without a use
            self._leaves = [self._rank(node) for node in self._last_used if self._is_leaf(node)]
            heapq.heapify(self._leaves)
        held = set(nodes)
        cached = prefix = 0
        for node in nodes:
            size = self._forest.sizes[node]
            is_hit = node in self._last_used
            if is_hit:
                cached += size
            if is_hit or (self._make_room(size, held) and self._has_parent(node)):
                cost = self._cost.seconds(size, prefix=prefix)
                self.policy.used(node, Use(self._clock, size, cost, is_hit))
                self._keep(node)
            prefix += size
        for node in nodes:
            if node in self._last_used and self._is_leaf(node):
                heapq.heappush(self._leaves, self._rank(node))
        return Served(cached, prefix)

    def check_integrity(self) -> None:
        """Check parents and sizes.

        Raises:
            ChunkCacheError: they are inconsistent; the message has the numbers.
        """
        total = self.cached_tokens(list(self._last_used))
        orphans = [node for node in self._last_used if not self._has_parent(node)]
        if total != self.num_tokens or total > self._capacity or orphans:
            raise ChunkCacheError(
                f"{total} tokens cached, recorded are {self.num_tokens} of at most "
                f"{self._capacity}; orphans {orphans[:5]}"
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
        # Ties: the least recently used, then the newest node, since deep nodes are newer.
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
