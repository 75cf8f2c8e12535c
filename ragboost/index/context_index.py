"""The context index: a radix tree over document sequences (RAGBoost section 4).

One tree mirrors one prefix cache: one backend, model and cache salt. A node is in the tree exactly
while some of its tokens are believed resident. Knows documents as hashable keys with lengths in
tokens; does not know texts, requests or engines. Not thread-safe: the caller holds a lock.
"""

from collections.abc import Hashable, Iterator, Sequence

from ragboost.errors import ContextIndexError
from ragboost.index.eviction import EvictionQueue
from ragboost.index.integrity import check_node, check_sequence, check_totals
from ragboost.index.node import Node, common_length
from ragboost.index.pressure import Ages, EvictionForecast
from ragboost.index.search import PrefixMatch, cached_prefix, search

Tokens = Sequence[int]


class ContextIndex:
    """A radix tree over the document sequences that a prefix cache holds.

    Args:
        capacity_tokens: the cache's size; inserting beyond it evicts. None: unbounded, and only
            `evict` and `remove` shrink the tree.
        max_nodes: bound on memory; beyond it the least recently used leaves go.
        max_visits: nodes that one search may go on from, the root included.

    Attributes:
        pressure: where given, what requests in flight are about to evict does not count in `search`
            and `cached_prefix`.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int | None = None,
        max_nodes: int = 200_000,
        max_visits: int = 32,
    ) -> None:
        self.pressure: EvictionForecast | None = None
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
        self._leaves = EvictionQueue()
        self._ages = Ages()

    def __iter__(self) -> Iterator[Node]:
        """Walk all nodes but the root, parents before children, siblings in slot order."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(sorted(node.children.values(), key=lambda child: -child.slot))

    def search(self, documents: Sequence[Hashable], tokens: Tokens) -> PrefixMatch:
        """Find the cached prefix of greatest length whose documents all belong to the request.

        Exact as long as it may go on from at most `max_visits` nodes; beyond that the best of what
        was visited, longest match first, which begins with the greedy descent (paper section 4.2).
        Changes nothing. Ties go to the prefix found first: of those that leave a node, the one that
        goes on with the more relevant document.

        Args:
            documents: distinct documents, most relevant first.
            tokens: their lengths.
        """
        blind = self._mark()
        return search(
            self.root,
            documents,
            tokens,
            max_visits=self.max_visits,
            gone=self._ages.gone,
            blind_from=blind,
        )

    def cached_prefix(self, documents: Sequence[Hashable], tokens: Tokens) -> tuple[int, int]:
        """Measure what the cache holds of a sequence in its given order.

        Returns:
            The number of leading documents with resident tokens, and these tokens.
        """
        blind = self._mark()
        return cached_prefix(self.root, documents, ages=self._ages, blind_from=blind)

    def insert(
        self,
        documents: Sequence[Hashable],
        tokens: Tokens,
        *,
        multi_turn: bool = False,
        is_use: bool = True,
    ) -> Node:
        """Record that the cache now holds this sequence, and evict what no longer fits.

        Args:
            documents: distinct documents in prompt order.
            tokens: their lengths; at least 1 each.
            multi_turn: a conversation goes on from here.
            is_use: somebody uses it now; else what was there already is as old as before.

        Returns:
            The node at whose end the sequence ends; the root for an empty sequence. Where the
            sequence itself does not fit, the node may have left the tree again.

        Raises:
            ContextIndexError: a length below 1, a document twice, or not one length per document.
        """
        check_sequence(documents, tokens)
        self._tick += 1
        node, at = self.root, 0
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None:
                tick = self._tick if is_use or node is self.root else node.last_used
                run = tuple(documents[at:]), tuple(tokens[at:])
                node = self._add_child(node, *run, tick=tick, is_use=is_use)
                break
            count = common_length(child.documents, documents, at)
            if count < len(child.documents):
                child = self._split(child, count, is_use=is_use)
            self._restore(child)
            if is_use:
                self._use(child)
                self._measure(child, tuple(tokens[at : at + count]))
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
            child = node.child_at(slot)
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
            self._use(step)

    def extend(self, node: Node, num_tokens: int) -> None:
        """Add generated tokens, or a later turn's, behind a node (paper section 4.1, index update).

        Does nothing for the root and for nodes that have been evicted meanwhile.
        """
        if node is self.root or not self.holds(node) or num_tokens <= 0:
            return
        self._restore(node)  # nothing can be generated behind what is not there
        node.generated_tokens += num_tokens
        self._count(node, num_tokens)
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
        self._count(leaf, num_tokens - leaf.num_tokens)
        leaf.generated_tokens = max(0, num_tokens - sum(leaf.tokens))
        self._leaves.push(leaf)

    def holds(self, node: Node) -> bool:
        """Whether the node is still in the tree."""
        while node.parent is not None:
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
        removed, subtree = 0, [node]
        for current in subtree:  # grows meanwhile
            removed += current.num_tokens
            subtree.extend(current.children.values())
        for current in reversed(subtree):
            self._detach(current)
        return removed

    def evict(self, num_tokens: int) -> int:
        """Remove tokens from the least recently used leaves (paper section 4.1, index update).

        A leaf loses its end first and leaves the tree when nothing of it is left; its parent may
        then be the next leaf. Evicting 0 does nothing.

        Returns:
            The tokens evicted: fewer than asked for only if the tree is empty then.
        """
        evicted = 0
        while evicted < num_tokens and (leaf := self._leaves.pop()) is not None:
            share = min(leaf.num_tokens, num_tokens - evicted)
            evicted += share
            if share == leaf.num_tokens:
                self._detach(leaf)
                continue
            self._count(leaf, -share)
            leaf.generated_tokens = max(0, leaf.generated_tokens - share)
            self._leaves.push(leaf)
        return evicted

    def evict_unused(self, tick: int) -> int:
        """Remove what has not been used after `tick`, leaves first.

        Returns:
            The tokens evicted.
        """
        evicted = 0
        while (leaf := self._leaves.pop()) is not None:
            if leaf.last_used > tick:
                self._leaves.push(leaf)
                break
            evicted += leaf.num_tokens
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
        for node in self:
            check_node(node)
        check_totals(
            self,
            num_nodes=self.num_nodes,
            num_tokens=self.num_tokens,
            max_nodes=self.max_nodes,
            capacity_tokens=self.capacity_tokens,
        )
        self._ages.check({node.last_used for node in self}, num_tokens=self.num_tokens)

    def _add_child(
        self,
        parent: Node,
        documents: tuple[Hashable, ...],
        tokens: tuple[int, ...],
        *,
        tick: int | None = None,
        is_use: bool = True,
    ) -> Node:
        tick = self._tick if tick is None else tick
        self._serial += 1
        node = Node(
            documents,
            tokens,
            parent=parent,
            slot=parent.next_slot,
            serial=self._serial,
            last_used=tick,
            epoch=self.pressure.epoch if is_use and self.pressure is not None else 0,
        )
        parent.attach(node)
        self.num_nodes += 1
        self.num_tokens += node.num_tokens
        self._ages.add(tick, node.num_tokens)
        self._leaves.push(node)
        return node

    def _split(self, node: Node, count: int, *, is_use: bool) -> Node:
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
            epoch=node.epoch,
        )
        parent.attach(upper)
        upper.num_tokens = min(upper.num_tokens, node.num_tokens)
        upper.confirmed_tokens = min(upper.num_tokens, node.confirmed_tokens)
        node.confirmed_tokens -= upper.confirmed_tokens
        node.documents, node.tokens = node.documents[count:], node.tokens[count:]
        node.num_tokens -= upper.num_tokens
        if node.num_tokens:
            node.parent, node.slot = upper, 0
            upper.attach(node)
            self.num_nodes += 1
            if is_use and self.pressure is not None and self.pressure.is_batched:
                self._use(node)  # a radix tree takes it for one
                self.touch(upper)
        else:  # nothing of the lower part is resident any more
            node.parent = None
            self._leaves.forget(node)
            self._leaves.push(upper)
        return upper

    def _restore(self, node: Node) -> None:
        """A sequence through the whole node was computed again: its evicted end is back."""
        if node.children:
            return  # whole: only leaves lose tokens
        missing = sum(node.tokens) + node.generated_tokens - node.num_tokens
        self._count(node, missing)

    def _measure(self, node: Node, tokens: tuple[int, ...]) -> None:
        """The lengths of a whole node's documents are known better now."""
        if tokens != node.tokens:
            whole = sum(node.tokens)
            if node.confirmed_tokens >= whole:
                node.confirmed_tokens = sum(tokens)
            node.confirmed_tokens = min(node.confirmed_tokens, sum(tokens))
            node.tokens = tokens
            self._count(node, sum(tokens) - whole)

    def _count(self, node: Node, num_tokens: int) -> None:
        """A node holds so many tokens more."""
        node.num_tokens += num_tokens
        self.num_tokens += num_tokens
        self._ages.add(node.last_used, num_tokens)

    def _use(self, node: Node) -> None:
        """A node is used now."""
        self._ages.add(node.last_used, -node.num_tokens)
        node.last_used = self._tick
        self._ages.add(node.last_used, node.num_tokens)

    def _mark(self) -> int | None:
        """Say what is about to be evicted; the epoch from which nodes are found when confirmed."""
        pressure = self.pressure
        if pressure is None:
            self._ages.mark(0)
            return None
        self._ages.mark(self.num_tokens - int(self.num_tokens * pressure.kept_share))
        return pressure.blind_from

    def _shrink(self) -> None:
        while self.num_nodes > self.max_nodes:
            leaf = self._leaves.pop()
            assert leaf is not None, f"{self.num_nodes} nodes and no leaf"
            self._detach(leaf)
        if self.capacity_tokens is not None and self.num_tokens > self.capacity_tokens:
            self.evict(self.num_tokens - self.capacity_tokens)

    def _detach(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root stays"
        self.num_nodes -= 1
        self.num_tokens -= leaf.num_tokens
        self._ages.add(leaf.last_used, -leaf.num_tokens)
        leaf.detach()
        self._leaves.forget(leaf)
        if parent.parent is not None and not parent.children:
            self._leaves.push(parent)
