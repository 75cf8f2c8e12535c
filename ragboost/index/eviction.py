"""The least recently used leaves of the context index (RAGBoost section 4.1, index update).

A min-heap by last use. Knows nodes. Does not know tokens or capacities.
"""

import heapq

from ragboost.index.node import Node


class EvictionQueue:
    """Leaves, to be taken out least recently used first.

    A node has at most one entry, so that touches cost nothing here: an entry that is older than its
    node's last use is queued again when it comes up, one whose node is no leaf any more is dropped.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Node]] = []
        self._num_dead = 0  # entries whose node has left the tree

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, leaf: Node) -> None:
        """Queue a leaf; does nothing where it is queued."""
        if not leaf.is_queued:
            leaf.is_queued = True
            heapq.heappush(self._heap, (leaf.last_used, leaf.serial, leaf))

    def pop(self) -> Node | None:
        """Take the least recently used leaf out; None if there is none."""
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

    def forget(self, node: Node) -> None:
        """A node has left the tree: its entry is dead. At most half of all entries ever are."""
        if not node.is_queued:
            return
        self._num_dead += 1
        if self._num_dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2].parent is not None]
            heapq.heapify(self._heap)
            self._num_dead = 0
