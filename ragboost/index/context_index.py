"""The context index: a radix tree over document sequences (RAGBoost section 4).

One tree mirrors one prefix cache: one backend, model and cache salt. A node is in the tree exactly
while some of its tokens are believed resident. Knows documents as hashable keys with lengths in
tokens; does not know texts, requests or engines. Not thread-safe: the caller holds a lock.
"""

import heapq
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ragboost.errors import ContextIndexError
from ragboost.index.node import Node

Tokens = Sequence[int]


class Match(NamedTuple):
    """The cached prefix that a request can reuse.

    Attributes:
        documents: the prefix, in cached order; all belong to the request.
        cached_tokens: how many of its tokens are resident.
        node: where the prefix ends; the root if nothing matches.
        num_documents: how many of the node's own documents belong to the prefix.
    """

    documents: tuple[Hashable, ...]
    cached_tokens: int
    node: Node
    num_documents: int


class ContextIndex:
    """A radix tree over the document sequences that a prefix cache holds.

    Args:
        capacity_tokens: the cache's size; inserting beyond it evicts. None: unbounded, and only
            `evict` and `remove` shrink the tree.
        max_nodes: bound on memory; beyond it the least recently used leaves go.
        max_visits: nodes that one search may look at; 1 is the greedy descent.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int | None = None,
        max_nodes: int = 200_000,
        max_visits: int = 64,
    ) -> None:
        self.capacity_tokens = capacity_tokens
        self.max_nodes = max_nodes
        self.max_visits = max_visits
        self._tick = 0  # never goes back
        self.clear()

    def __repr__(self) -> str:
        return f"ContextIndex(num_nodes={self.num_nodes}, num_tokens={self.num_tokens})"

    def clear(self) -> None:
        """Forget everything, as after an engine's AllBlocksCleared."""
        self.root = Node()
        self.num_nodes = 0
        self.num_tokens = 0
        self._serial = 0
        # Leaves by last use (paper section 4.1). A leaf has one entry; one that has been used since
        # is queued again when it comes up, one that is no leaf any more is dropped.
        self._heap: list[tuple[int, int, Node]] = []

    def __iter__(self) -> Iterator[Node]:
        """Walk all nodes but the root, parents before children, siblings in slot order."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(sorted(node.children.values(), key=lambda child: -child.slot))

    def search(self, documents: Sequence[Hashable], tokens: Tokens) -> Match:
        """Find the cached prefix of greatest length whose documents all belong to the request.

        Exact as long as at most `max_visits` nodes can hold it; beyond that the best among the
        nodes visited, deepest match first, which includes the greedy descent (paper section 4.2).
        Changes nothing. Ties go to the prefix that begins with the more relevant document.

        Args:
            documents: distinct documents, most relevant first.
            tokens: their lengths.
        """
        position = {document: i for i, document in enumerate(documents)}
        total = sum(tokens)
        best_node, best_count, best_tokens = self.root, 0, 0
        # Entries: (-matched tokens, order of discovery, documents used as a bit set, node).
        frontier: list[tuple[int, int, int, Node]] = [(0, 0, 0, self.root)]
        found = 0
        visits = self.max_visits
        while frontier and visits:
            visits -= 1
            negative, _, used, node = heapq.heappop(frontier)
            children = node.children
            if len(children) < len(documents):
                starts = (
                    sorted((position[d], c) for d, c in children.items() if d in position)
                    if children
                    else ()
                )
            else:
                starts = [(i, children[d]) for i, d in enumerate(documents) if d in children]
            for i, child in starts:
                if used >> i & 1:
                    continue
                now_used, matched, count = used, -negative, 0
                resident = child.num_tokens
                for document, length in zip(child.documents, child.tokens, strict=True):
                    j = position.get(document)
                    if j is None or resident <= 0:
                        break
                    now_used |= 1 << j
                    matched += length if length < resident else resident
                    resident -= length
                    count += 1
                if matched > best_tokens:
                    best_node, best_count, best_tokens = child, count, matched
                if count == len(child.documents) and child.children:
                    found += 1
                    heapq.heappush(frontier, (-matched, found, now_used, child))
            if best_tokens >= total:
                break
        path = best_node.ancestors
        documents_before = [d for node in path[:-1] for d in node.documents]
        return Match(
            tuple(documents_before) + best_node.documents[:best_count],
            best_tokens,
            best_node,
            best_count,
        )

    def cached_prefix(self, documents: Sequence[Hashable], tokens: Tokens) -> tuple[int, int]:
        """Measure what the cache holds of a sequence in its given order.

        Returns:
            The number of leading documents with resident tokens, and these tokens.
        """
        node, at, cached = self.root, 0, 0
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None:
                break
            count = _common_length(child.documents, documents, at)
            resident = child.resident_prefix(count)
            while count and sum(child.tokens[: count - 1]) >= resident:
                count -= 1
            cached += resident
            at += count
            if count < len(child.documents):
                break
            node = child
        return at, cached

    def insert(
        self, documents: Sequence[Hashable], tokens: Tokens, *, multi_turn: bool = False
    ) -> Node:
        """Record that the cache now holds this sequence, and evict what no longer fits.

        Args:
            documents: distinct documents in prompt order.
            tokens: their lengths; at least 1 each.
            multi_turn: a conversation goes on from here.

        Returns:
            The node at whose end the sequence ends; the root for an empty sequence.

        Raises:
            ContextIndexError: a length below 1, or as many lengths as documents are not given.
        """
        if len(documents) != len(tokens) or any(length < 1 for length in tokens):
            raise ContextIndexError(
                f"{len(documents)} documents need as many lengths of at least 1, got {tokens!r}"
            )
        self._tick += 1
        node, at = self.root, 0
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None:
                node = self._add_child(node, tuple(documents[at:]), tuple(tokens[at:]))
                break
            count = _common_length(child.documents, documents, at)
            if count < len(child.documents):
                child = self._split(child, count)
            self._restore(child)
            child.last_used = self._tick
            node, at = child, at + count
        node.is_multi_turn = node.is_multi_turn or multi_turn
        self._shrink()
        return node

    def traverse(self, search_path: Sequence[int]) -> Node:
        """Follow child positions from the root and mark the way as used (paper section 4.2).

        Raises:
            ContextIndexError: no such path, for example because it has been evicted.
        """
        node = self.root
        for depth, slot in enumerate(search_path):
            child = next((c for c in node.children.values() if c.slot == slot), None)
            if child is None:
                raise ContextIndexError(
                    f"search path {tuple(search_path)} ends after {depth} steps"
                )
            node = child
        self.touch(node)
        return node

    def touch(self, node: Node) -> None:
        """Mark a node and all above it as just used."""
        self._tick += 1
        for step in node.ancestors:
            step.last_used = self._tick

    def extend(self, node: Node, num_tokens: int) -> None:
        """Add generated tokens, or a later turn's, behind a node (paper section 4.1, index update).

        Does nothing for the root and for nodes that have been evicted meanwhile.
        """
        if node is self.root or not self.holds(node) or num_tokens <= 0:
            return
        node.generated_tokens += num_tokens
        node.num_tokens += num_tokens
        self.num_tokens += num_tokens
        self.touch(node)
        self._shrink()

    def cut(self, leaf: Node, num_tokens: int) -> None:
        """Leave only the first tokens of a leaf resident; at least 1 and no more than there are.

        Raises:
            ContextIndexError: the node is no leaf of the tree.
        """
        if not leaf.is_leaf or leaf is self.root or not self.holds(leaf):
            raise ContextIndexError(f"{leaf!r} is no leaf of this index")
        num_tokens = max(1, min(num_tokens, leaf.num_tokens))
        self.num_tokens -= leaf.num_tokens - num_tokens
        leaf.num_tokens = num_tokens
        leaf.generated_tokens = max(0, num_tokens - sum(leaf.tokens))
        self._queue(leaf)

    def holds(self, node: Node) -> bool:
        """Whether the node is still in the tree."""
        while node.parent is not None:
            if node.parent.children.get(node.documents[0]) is not node:
                return False
            node = node.parent
        return node is self.root

    def remove(self, node: Node) -> int:
        """Take a node and everything that extends it out of the tree.

        A prefix cache cannot hold a sequence without its prefix, so the subtree goes with the node.

        Returns:
            The tokens removed; 0 if the node is not in the tree.

        Raises:
            ContextIndexError: the root; use `clear`.
        """
        if node is self.root:
            raise ContextIndexError("the root cannot be removed; clear() empties the index")
        if not self.holds(node):
            return 0
        removed, stack = 0, [node]
        while stack:
            current = stack.pop()
            removed += current.num_tokens
            self.num_nodes -= 1
            stack.extend(current.children.values())
        self.num_tokens -= removed
        self._detach(node)
        return removed

    def evict(self, num_tokens: int) -> int:
        """Remove tokens from the least recently used leaves (paper section 4.1, index update).

        A leaf loses its end first and leaves the tree when nothing of it is left; its parent may
        then be the next leaf. Evicting 0 does nothing.

        Returns:
            The tokens evicted: fewer than asked for only if the tree is empty then.
        """
        evicted = 0
        while evicted < num_tokens and (leaf := self._oldest_leaf()) is not None:
            share = min(leaf.num_tokens, num_tokens - evicted)
            leaf.num_tokens -= share
            leaf.generated_tokens = max(0, leaf.generated_tokens - share)
            self.num_tokens -= share
            evicted += share
            if leaf.num_tokens:
                self._queue(leaf)
            else:
                self.num_nodes -= 1
                self._detach(leaf)
        return evicted

    def evict_unused(self, tick: int) -> int:
        """Remove what has not been used after `tick`, leaves first.

        Returns:
            The tokens evicted.
        """
        evicted = 0
        while (leaf := self._oldest_leaf()) is not None:
            if leaf.last_used > tick:
                self._queue(leaf)
                break
            evicted += leaf.num_tokens
            self.num_nodes -= 1
            self.num_tokens -= leaf.num_tokens
            self._detach(leaf)
        return evicted

    @property
    def tick(self) -> int:
        """When the index was last used: what `Node.last_used` of the last insertion holds."""
        return self._tick

    def check_integrity(self) -> None:
        """Compare every derived figure with the tree.

        Raises:
            ContextIndexError: an invariant does not hold; the message gives the numbers.
        """
        num_nodes = num_tokens = 0
        for node in self:
            num_nodes += 1
            num_tokens += node.num_tokens
            whole = sum(node.tokens)
            for fact, holds in {
                "has documents": len(node.documents) > 0,
                "has a length per document": len(node.documents) == len(node.tokens),
                "has resident tokens": 0 < node.num_tokens <= whole + node.generated_tokens,
                "is whole unless a leaf": node.is_leaf or node.num_tokens >= whole,
                "is its parent's child": node.parent is not None
                and node.parent.children.get(node.documents[0]) is node,
                "has a slot of its own": len({c.slot for c in node.children.values()})
                == len(node.children),
                "is not newer than its parent": node.parent is self.root
                or node.parent is None
                or node.last_used <= node.parent.last_used,
                "is queued if a leaf": node.is_queued or not node.is_leaf,
            }.items():
                if not holds:
                    raise ContextIndexError(f"{node!r}: does not hold: {fact}")
        if (num_nodes, num_tokens) != (self.num_nodes, self.num_tokens):
            raise ContextIndexError(
                f"counted {num_nodes} nodes and {num_tokens} tokens, "
                f"recorded {self.num_nodes} and {self.num_tokens}"
            )
        if self.capacity_tokens is not None and num_tokens > self.capacity_tokens:
            raise ContextIndexError(f"{num_tokens} tokens exceed {self.capacity_tokens}")

    def _add_child(
        self, parent: Node, documents: tuple[Hashable, ...], tokens: tuple[int, ...]
    ) -> Node:
        self._serial += 1
        node = Node(
            documents,
            tokens,
            parent=parent,
            slot=parent.next_slot,
            serial=self._serial,
            last_used=self._tick,
        )
        parent.next_slot += 1
        parent.children[documents[0]] = node
        self.num_nodes += 1
        self.num_tokens += node.num_tokens
        self._queue(node)
        return node

    def _split(self, node: Node, count: int) -> Node:
        """Put the first `count` documents of `node` into a new node above it, in its slot."""
        parent = node.parent
        assert parent is not None, "the root has no documents to split"
        self._serial += 1
        upper = Node(
            node.documents[:count],
            node.tokens[:count],
            parent=parent,
            slot=node.slot,
            serial=self._serial,
            last_used=node.last_used,
        )
        parent.children[upper.documents[0]] = upper
        upper.num_tokens = min(upper.num_tokens, node.num_tokens)
        upper.confirmed_tokens = min(upper.num_tokens, node.confirmed_tokens)
        node.confirmed_tokens -= upper.confirmed_tokens
        node.documents, node.tokens = node.documents[count:], node.tokens[count:]
        node.num_tokens -= upper.num_tokens
        node.parent, node.slot = upper, 0
        upper.next_slot = 1
        if node.num_tokens:
            upper.children[node.documents[0]] = node
            self.num_nodes += 1
        else:  # nothing of the lower part is resident any more
            node.parent = None
            self._queue(upper)
        return upper

    def _restore(self, node: Node) -> None:
        """A sequence through the whole node was computed again: its evicted end is back."""
        missing = sum(node.tokens) + node.generated_tokens - node.num_tokens
        if missing > 0:
            node.num_tokens += missing
            self.num_tokens += missing

    def _shrink(self) -> None:
        while self.num_nodes > self.max_nodes:
            leaf = self._oldest_leaf()
            assert leaf is not None, f"{self.num_nodes} nodes and no leaf"
            self.num_nodes -= 1
            self.num_tokens -= leaf.num_tokens
            self._detach(leaf)
        if self.capacity_tokens is not None and self.num_tokens > self.capacity_tokens:
            self.evict(self.num_tokens - self.capacity_tokens)

    def _queue(self, leaf: Node) -> None:
        if not leaf.is_queued:
            leaf.is_queued = True
            heapq.heappush(self._heap, (leaf.last_used, leaf.serial, leaf))

    def _oldest_leaf(self) -> Node | None:
        """Take the least recently used leaf out of the heap."""
        while self._heap:
            last_used, _, node = heapq.heappop(self._heap)
            node.is_queued = False
            if node.children or node.parent is None:
                continue
            if last_used == node.last_used:
                return node
            self._queue(node)
        return None

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.documents[0]]
        node.parent = None
        if parent.parent is not None and not parent.children:
            self._queue(parent)


def _common_length(run: tuple[Hashable, ...], documents: Sequence[Hashable], at: int) -> int:
    """Documents that `run` and `documents[at:]` have in common from their starts."""
    count = 1
    limit = min(len(run), len(documents) - at)
    while count < limit and run[count] == documents[at + count]:
        count += 1
    return count
