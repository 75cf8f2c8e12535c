"""The eviction order of the context index: least recently used leaves (RAGBoost section 4.1).

A min-heap by last use. Knows nodes. Does not know tokens or capacities.
"""

import heapq

from ragboost.index.node import Node


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
        """Queue a leaf unless it is queued already."""
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
