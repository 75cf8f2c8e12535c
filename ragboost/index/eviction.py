"""Evict the least recently used, and forecast what requests in flight will evict (section 4.1).

An engine evicts when it computes a request, not when the request is sent. Does not know engines or
requests.
"""

import heapq
import math
from collections import OrderedDict

from ragboost.index.node import Node


class EvictionForecast:
    """The state of a backend's prefix cache when the engine will compute a request sent now.

    All context indexes of a backend share one; `cache_sync.in_flight` computes it.
    """

    __slots__ = ("free_tokens", "is_batched", "next_batch", "retained_share")

    def __init__(self) -> None:
        # Share of all cached tokens that will still be cached; the least recently used rest
        # counts as evicted.
        self.retained_share = 1.0
        self.next_batch = 0  # number of the engine batch that will compute the request
        # New tokens for which this batch has room; a larger request joins the next one.
        self.free_tokens = math.inf
        # The engine keeps a radix tree: requests of a batch do not reuse what the batch itself
        # computes, and nodes are evicted whole.
        self.is_batched = False

    def update(
        self, retained_share: float, next_batch: int, free_tokens: float, *, is_batched: bool
    ) -> None:
        self.retained_share = retained_share
        self.next_batch = next_batch
        self.free_tokens = free_tokens
        self.is_batched = is_batched

    def admit(self, new_tokens: int) -> bool:
        """Return True if the batch has room for a request; else start a new batch for it."""
        if not self.is_batched or new_tokens < self.free_tokens:
            return True
        self.next_batch += 1
        self.free_tokens = math.inf
        return False

    @property
    def first_hidden_batch(self) -> int | None:
        """The first batch whose nodes cannot be reused yet; None: all nodes can be reused."""
        return self.next_batch if self.is_batched else None


class TokenAges:
    """Resident tokens by the tick of their last use, split into evicted and retained ones.

    The tokens of one tick lie on one path from the root. If only a part of them will be evicted,
    it is the end of that path.
    """

    def __init__(self) -> None:
        self.evict_through_tick = 0  # tokens last used at it or earlier will be evicted
        self.partial_tokens = 0  # tokens of the next tick that will be evicted as well
        self._tokens: OrderedDict[int, int] = OrderedDict()  # in the order of ticks
        self._num_evicted = 0  # tokens up to `evict_through_tick`

    def add(self, tick: int, num_tokens: int) -> None:
        total = self._tokens.get(tick, 0) + num_tokens
        if total:
            self._tokens[tick] = total
        else:
            self._tokens.pop(tick, None)
        if tick <= self.evict_through_tick:
            self._num_evicted += num_tokens

    def expect_eviction(self, num_tokens: int) -> None:
        """Expect this many of the oldest tokens to be evicted.

        Takes time proportional to the ticks between the previous forecast and this one.
        """
        if num_tokens <= 0 or not self._tokens:
            self.evict_through_tick = next(iter(self._tokens), 1) - 1
            self._num_evicted = self.partial_tokens = 0
            return
        while self._num_evicted > num_tokens:
            self._num_evicted -= self._tokens.get(self.evict_through_tick, 0)
            self.evict_through_tick -= 1
        newest = next(reversed(self._tokens))
        following = self._tokens.get(self.evict_through_tick + 1, 0)
        while self.evict_through_tick < newest and self._num_evicted + following <= num_tokens:
            self.evict_through_tick += 1
            self._num_evicted += following
            following = self._tokens.get(self.evict_through_tick + 1, 0)
        self.partial_tokens = min(num_tokens - self._num_evicted, following)

    def retained_tokens(self, tick: int) -> int:
        if tick <= self.evict_through_tick:
            return 0
        evicted = self.partial_tokens if tick == self.evict_through_tick + 1 else 0
        return self._tokens.get(tick, 0) - evicted


class EvictionQueue:
    """Leaves of the context index, popped least recently used first.

    A node has at most one entry and touching it costs nothing: `pop` queues an entry again if the
    node has been used since, and drops it if the node is no longer a leaf.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._num_dead = 0  # entries whose node has left the tree

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, leaf: Node) -> None:
        if not leaf.is_queued:
            leaf.is_queued = True
            heapq.heappush(self._heap, (leaf.last_used, leaf.serial, leaf))

    def pop(self) -> Node | None:
        """Remove and return the least recently used leaf; None if there is none."""
        while self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            node.is_queued = False
            if node.parent is None:
                self._num_dead -= 1
            elif last_used != node.last_used:
                if not node.children:
                    self.push(node)
            elif not node.children:
                return node
        return None

    def discard(self, node: Node) -> None:
        """Mark the entry of a node that left the tree as dead; at most half of the entries are."""
        if not node.is_queued:
            return
        self._num_dead += 1
        if self._num_dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].parent is not None]
            heapq.heapify(self._heap)
            self._num_dead = 0
