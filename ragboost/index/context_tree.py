"""A radix tree over document sequences: what a prefix cache holds (RAGBoost section 4).

A node is in the tree exactly while some of its tokens are believed resident. Knows documents as
hashable keys with lengths in tokens; does not know requests or engines.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ragboost.errors import ContextIndexError
from ragboost.index.directory import PrefixDirectory
from ragboost.index.eviction import EvictionForecast, EvictionQueue, TokenAges
from ragboost.index.node import Node, RetiredTree, check_sequence, common_length, unlink_all

Documents = Sequence[Hashable]
Tokens = Sequence[int]

_UNLINKED_PER_INSERT = 64  # an insertion adds at most 2 nodes


class Seat(NamedTuple):
    """An index's place in a directory, which is told what the index inserts and removes."""

    directory: PrefixDirectory
    bit: int  # of the index


class ContextTree:
    """The nodes, their resident tokens and their eviction order."""

    def __init__(
        self,
        *,
        capacity_tokens: int | None = None,
        max_nodes: int = 200_000,
        seat: Seat | None = None,
    ) -> None:
        # What requests in flight are about to evict; searches count it as evicted. None: nothing.
        self.eviction_forecast: EvictionForecast | None = None
        self.capacity_tokens = capacity_tokens  # inserting more evicts; None: unbounded
        self.max_nodes = max_nodes  # least recently used leaves are evicted beyond it
        self._tick = 0  # never decreases
        self._seat = seat
        # Cleared trees, not yet taken apart; in a directory those of all its indexes.
        self._retired = seat.directory.retired if seat is not None else []
        self.root = Node()
        self._empty()

    def __del__(self) -> None:
        retired = self._retired if self._seat is None else []
        unlink_all([self.root, *[node for tree in retired for node in tree.nodes]])

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_nodes={self.num_nodes}, num_tokens={self.num_tokens})"

    def clear(self) -> None:
        """Remove everything, as after an engine's AllBlocksCleared.

        Takes the same time for any number of nodes: later insertions take the old tree apart.
        """
        if not self.root.children:
            return  # an engine may say so any number of times, and insert nothing
        seat = self._seat
        cleared = seat.directory.clear(seat.bit) if seat is not None else 0
        self._retired.append(RetiredTree([self.root], seat.bit if seat is not None else 0, cleared))
        self._empty()

    def leave_directory(self) -> None:
        """Remove everything, and say nothing to the directory from then on.

        Like `clear`, it leaves the tree to later insertions, of the directory's other indexes.
        """
        self.clear()
        if self._seat is not None:
            self._seat.directory.forget(self._seat.bit)
            self._retired = []
        self._seat = self.root.branch = None

    def _empty(self) -> None:
        self.root = Node()
        if self._seat is not None:
            self.root.branch = self._seat.directory.root
        self.num_nodes = 0
        self.num_tokens = 0
        self._serial = 0
        self._leaves = EvictionQueue()
        self._ages = TokenAges()

    def __iter__(self) -> Iterator[Node]:
        """Iterate over all nodes but the root, parents before children, siblings in slot order."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            stack.extend(sorted(node.children.values(), key=lambda child: -child.slot))

    @property
    def tick(self) -> int:
        """The logical time of the latest use: `Node.last_used` of the latest insertion."""
        return self._tick

    def insert(
        self, documents: Documents, tokens: Tokens, *, multi_turn: bool = False, is_use: bool = True
    ) -> Node:
        """Record that the cache now holds a sequence, and evict what no longer fits.

        Returns the node in which it ends, which may have been evicted; the root for an empty one.
        If it is no use, nodes that exist keep their age. Raises ContextIndexError for a length
        below 1, a repeated document, or another number of lengths.
        """
        check_sequence(documents, tokens)
        self._unlink_retired(_UNLINKED_PER_INSERT)
        self._tick += 1
        if self._seat is not None and is_use:
            self._seat.directory.note(documents, self._seat.bit)
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

    def touch(self, node: Node) -> None:
        self._tick += 1
        for step in node.ancestors:
            self._use(step)

    def extend(self, node: Node, num_tokens: int) -> None:
        """Add generated tokens, or a later turn's, behind a node (paper section 4.1, index update).

        Does nothing for the root and for nodes that have been evicted.
        """
        if node is self.root or not self.holds(node) or num_tokens <= 0:
            return
        self._restore(node)
        node.generated_tokens += num_tokens
        self._count(node, num_tokens)
        self.touch(node)
        self._shrink()

    def truncate(self, leaf: Node, num_tokens: int) -> None:
        """Keep only the first tokens of a leaf resident: at least 1, at most what it holds."""
        if not leaf.is_leaf or leaf is self.root or not self.holds(leaf):
            raise ContextIndexError(f"{leaf!r} is not a leaf of this index")
        num_tokens = max(1, min(num_tokens, leaf.num_tokens))
        self._count(leaf, num_tokens - leaf.num_tokens)
        leaf.generated_tokens = max(0, num_tokens - sum(leaf.tokens))
        self._leaves.push(leaf)

    def holds(self, node: Node) -> bool:
        while node.parent is not None:
            node = node.parent
        return node is self.root

    def remove(self, node: Node) -> int:
        """Remove a node and its subtree: a prefix cache cannot hold a sequence without its prefix.

        Returns the tokens removed; 0 if the node is not in the tree.
        """
        if node is self.root:
            raise ContextIndexError("the root cannot be removed; clear() empties the index")
        if not self.holds(node):
            return 0
        removed, subtree = 0, [node]
        for current in subtree:  # grows while iterating
            removed += current.num_tokens
            subtree.extend(current.children.values())
        for current in reversed(subtree):
            self._detach(current)
        return removed

    def evict(self, num_tokens: int) -> int:
        """Remove tokens from the least recently used leaves (paper section 4.1, index update).

        A leaf loses its last tokens first and is removed with its last one; its parent may become
        the next leaf. Evicting 0 does nothing. Returns the tokens evicted; fewer than requested
        only if the tree is empty afterwards.
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
        """Remove all nodes last used at `tick` or earlier; return the tokens evicted."""
        evicted = 0
        while (leaf := self._leaves.pop()) is not None:
            if leaf.last_used > tick:
                self._leaves.push(leaf)
                break
            evicted += leaf.num_tokens
            self._detach(leaf)
        return evicted

    def _add_child(
        self,
        parent: Node,
        documents: tuple[Hashable, ...],
        tokens: tuple[int, ...],
        *,
        tick: int,
        is_use: bool,
    ) -> Node:
        forecast = self.eviction_forecast
        self._serial += 1
        node = Node(
            documents,
            tokens,
            parent=parent,
            slot=parent.next_slot,
            serial=self._serial,
            last_used=tick,
            batch=forecast.next_batch if is_use and forecast is not None else 0,
        )
        parent.attach(node)
        if self._seat is not None:
            assert parent.branch is not None, "nodes have branches while there is a directory"
            node.branch = self._seat.directory.add(parent.branch, documents, self._seat.bit)
            if not is_use:  # another proxy sent it
                self._seat.directory.note(documents, self._seat.bit)
        self.num_nodes += 1
        self.num_tokens += node.num_tokens
        self._ages.add(tick, node.num_tokens)
        self._leaves.push(node)
        return node

    def _split(self, node: Node, count: int, *, is_use: bool) -> Node:
        """Move the first `count` documents of `node` into a new parent, which takes its slot."""
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
            batch=node.batch,
        )
        parent.attach(upper)
        upper.num_tokens = min(upper.num_tokens, node.num_tokens)
        upper.confirmed_tokens = min(upper.num_tokens, node.confirmed_tokens)
        node.confirmed_tokens -= upper.confirmed_tokens
        node.documents, node.tokens = node.documents[count:], node.tokens[count:]
        node.num_tokens -= upper.num_tokens
        if self._seat is not None:
            assert node.branch is not None, "nodes have branches while there is a directory"
            upper.branch = self._seat.directory.end_before(node.branch, len(node.documents))
        if node.num_tokens:
            node.parent, node.slot = upper, 0
            upper.attach(node)
            self.num_nodes += 1
            forecast = self.eviction_forecast
            if is_use and forecast is not None and forecast.is_batched:
                self._use(node)  # SGLang's radix tree counts a split as a use
                self.touch(upper)
        else:  # no token of the lower part is resident
            node.parent = None
            self._withdraw(node)
            self._leaves.discard(node)
            self._leaves.push(upper)
        return upper

    def _restore(self, node: Node) -> None:
        if node.children:
            return  # only leaves lose tokens
        missing = sum(node.tokens) + node.generated_tokens - node.num_tokens
        self._count(node, missing)

    def _measure(self, node: Node, tokens: tuple[int, ...]) -> None:
        if tokens != node.tokens:
            old, new = sum(node.tokens), sum(tokens)
            is_confirmed = node.confirmed_tokens >= old
            node.confirmed_tokens = new if is_confirmed else min(node.confirmed_tokens, new)
            node.tokens = tokens
            self._count(node, new - old)

    def _count(self, node: Node, num_tokens: int) -> None:
        node.num_tokens += num_tokens
        self.num_tokens += num_tokens
        self._ages.add(node.last_used, num_tokens)

    def _use(self, node: Node) -> None:
        self._ages.add(node.last_used, -node.num_tokens)
        node.last_used = self._tick
        self._ages.add(node.last_used, node.num_tokens)

    def _unlink_retired(self, num_nodes: int) -> None:
        """Take nodes of cleared trees apart: parents and children refer to each other."""
        while self._retired and num_nodes:
            nodes, bit, cleared = self._retired[-1]
            if not nodes:
                self._retired.pop()
                continue
            node = nodes.pop()
            if self._seat is not None and node.branch is not None:
                length, directory = len(node.documents), self._seat.directory
                directory.remove(node.branch, length, bit, cleared=cleared)
            nodes += node.unlink()
            num_nodes -= 1

    def _withdraw(self, node: Node) -> None:
        if self._seat is not None and node.branch is not None:
            self._seat.directory.remove(node.branch, len(node.documents), self._seat.bit)

    def _shrink(self) -> None:
        while self.num_nodes > self.max_nodes:
            leaf = self._leaves.pop()
            assert leaf is not None, f"{self.num_nodes} nodes and no leaf"
            self._detach(leaf)
        if self.capacity_tokens is not None and self.num_tokens > self.capacity_tokens:
            self.evict(self.num_tokens - self.capacity_tokens)

    def _detach(self, leaf: Node) -> None:
        parent = leaf.parent
        assert parent is not None, "the root cannot be detached"
        self.num_nodes -= 1
        self.num_tokens -= leaf.num_tokens
        self._ages.add(leaf.last_used, -leaf.num_tokens)
        leaf.detach()
        self._withdraw(leaf)
        self._leaves.discard(leaf)
        if parent.parent is not None and not parent.children:
            self._leaves.push(parent)
