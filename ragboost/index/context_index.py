"""The context index: a radix tree over document sequences (RAGBoost section 4).

One tree mirrors one prefix cache: one backend, model and cache salt. A node is in the tree exactly
while some of its tokens are believed resident. Knows documents as hashable keys with lengths in
tokens; does not know texts, requests or engines. Not thread-safe: the caller holds a lock.
"""

import sys
from collections.abc import Hashable, Iterator, Sequence
from typing import NamedTuple

from ragboost.errors import ContextIndexError
from ragboost.index.eviction import EvictionForecast, EvictionQueue, TokenAges
from ragboost.index.node import Node, common_length
from ragboost.index.search import CachedPrefix, PrefixMatch, cached_prefix, search

Documents = Sequence[Hashable]
Tokens = Sequence[int]

_UNLINKED_PER_INSERT = 64  # an insertion adds at most 2 nodes


class IndexEntry(NamedTuple):
    """The record of one request in the context index.

    Attributes:
        search_path: child positions from the root (paper section 4.1).
        cached_tokens: tokens of the sequence that were resident before.
        documents: what was inserted, in prompt order; empty for a later turn.
        tokens: lengths of `documents`.
        num_cached: number of leading documents that had resident tokens before.
        path: for each node of that cached prefix, the resident tokens up to its end, by `tokens`,
            and the tick of its last use.
        tick: tick of the insertion.
    """

    search_path: tuple[int, ...]
    cached_tokens: int
    documents: tuple[Hashable, ...] = ()
    tokens: tuple[int, ...] = ()
    num_cached: int = 0
    path: tuple[tuple[int, int], ...] = ()
    tick: int = 0


class ContextIndex:
    """A radix tree over the document sequences that a prefix cache holds.

    Args:
        capacity_tokens: size of the cache; inserting more evicts. None: unbounded, only `evict` and
            `remove` shrink the tree.
        max_nodes: bound on memory; the least recently used leaves are evicted beyond it.
        max_visits: nodes that one search compares, including the root; from the last of them it
            only descends, to any depth.

    Attributes:
        eviction_forecast: what requests in flight are about to evict. `search` and `cached_prefix`
            count it as evicted. None: nothing.
    """

    def __init__(
        self, *, capacity_tokens: int | None = None, max_nodes: int = 200_000, max_visits: int = 32
    ) -> None:
        self.eviction_forecast: EvictionForecast | None = None
        self.capacity_tokens = capacity_tokens
        self.max_nodes = max_nodes
        self.max_visits = max_visits
        self._tick = 0  # never decreases
        self._retired: list[Node] = []  # of trees that were cleared, not yet taken apart
        self.root = Node()
        self.clear()

    def __del__(self) -> None:
        self._retired.append(self.root)
        self._unlink_retired(sys.maxsize)

    def __repr__(self) -> str:
        return f"ContextIndex(num_nodes={self.num_nodes}, num_tokens={self.num_tokens})"

    def clear(self) -> None:
        """Remove everything, as after an engine's AllBlocksCleared.

        Takes the same time for any number of nodes: later insertions take the old tree apart.
        """
        self._retired.append(self.root)
        self.root = Node()
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

    def search(self, documents: Documents, tokens: Tokens) -> PrefixMatch:
        """Find the cached prefix of greatest length whose documents all belong to the request.

        Best-first search, longest match first. Exact if at most `max_visits` nodes need expanding;
        otherwise the best of those visited, which include the greedy descent to its end (paper
        section 4.2).
        Ties go to the prefix found first: among the children of a node, the one that begins with
        the more relevant document. Changes nothing.

        Args:
            documents: distinct documents, most relevant first.
            tokens: their lengths.
        """
        first_hidden_batch = self._apply_forecast()
        return search(
            self.root,
            documents,
            tokens,
            max_visits=self.max_visits,
            evict_through_tick=self._ages.evict_through_tick,
            first_hidden_batch=first_hidden_batch,
        )

    def cached_prefix(self, documents: Documents) -> CachedPrefix:
        """Measure the resident part of a sequence in its given order. Changes nothing."""
        first_hidden_batch = self._apply_forecast()
        return cached_prefix(
            self.root, documents, ages=self._ages, first_hidden_batch=first_hidden_batch
        )

    def insert(
        self, documents: Documents, tokens: Tokens, *, multi_turn: bool = False, is_use: bool = True
    ) -> Node:
        """Record that the cache now holds a sequence, and evict what no longer fits.

        Args:
            documents: distinct documents in prompt order.
            tokens: their lengths, at least 1 each.
            multi_turn: a conversation continues from here.
            is_use: count this as a use; if False, nodes that exist keep their age.

        Returns:
            The node at whose end the sequence ends; the root for an empty sequence. If the sequence
            does not fit, the node may have been evicted.

        Raises:
            ContextIndexError: a length below 1, a repeated document, or another number of lengths.
        """
        _check_sequence(documents, tokens)
        self._unlink_retired(_UNLINKED_PER_INSERT)
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

    def record_leading(self, documents: Documents, tokens: Tokens) -> IndexEntry:
        """Insert documents sent at the front of a prompt; report what was cached of them before."""
        num_cached, cached_tokens = self.cached_prefix(documents)
        forecast = self.eviction_forecast
        if forecast is not None and not forecast.admit(sum(tokens) - cached_tokens):
            num_cached, cached_tokens = self.cached_prefix(documents)
        path = self._cached_path(documents, tokens)
        node = self.insert(documents, tokens)
        if forecast is not None:  # the next batch computes what was not cached
            for step in reversed(node.ancestors):
                if len(step.context) <= num_cached:
                    break
                step.batch = forecast.next_batch
        return IndexEntry(
            node.search_path,
            cached_tokens,
            documents=tuple(documents),
            tokens=tuple(tokens),
            num_cached=num_cached,
            path=path,
            tick=self._tick,
        )

    def record_turn(
        self, leading: Documents, tokens: Tokens, *, history_tokens: int, turn_tokens: int
    ) -> IndexEntry:
        """Extend a conversation's node by a later turn (paper section 4.1, multi-turn flag).

        The turn's own documents do not become a child of the node: questions and answers precede
        them, so no other request can reuse them.

        Args:
            leading: the documents at the front of the conversation, in prompt order.
            tokens: their lengths.
            history_tokens: length of the earlier turns behind them.
            turn_tokens: length of the new turn.
        """
        if not leading:
            return IndexEntry((), 0)
        cached_tokens = self.cached_prefix(leading).cached_tokens
        node = self.insert(leading, tokens, multi_turn=True)
        # The engine recomputes what was evicted: afterwards the whole conversation is resident.
        cached_history = min(node.generated_tokens, history_tokens)
        self.extend(node, history_tokens - cached_history + turn_tokens)
        return IndexEntry(node.search_path, cached_tokens + cached_history)

    def traverse(self, search_path: Sequence[int]) -> Node:
        """Follow child positions from the root and touch the node (paper section 4.2).

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
        """Count a node and its ancestors as just used."""
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
        """Keep only the first tokens of a leaf resident: at least 1, at most what it holds.

        Raises:
            ContextIndexError: the node is not a leaf of the tree.
        """
        if not leaf.is_leaf or leaf is self.root or not self.holds(leaf):
            raise ContextIndexError(f"{leaf!r} is not a leaf of this index")
        num_tokens = max(1, min(num_tokens, leaf.num_tokens))
        self._count(leaf, num_tokens - leaf.num_tokens)
        leaf.generated_tokens = max(0, num_tokens - sum(leaf.tokens))
        self._leaves.push(leaf)

    def holds(self, node: Node) -> bool:
        """Return True if the node is in the tree."""
        while node.parent is not None:
            node = node.parent
        return node is self.root

    def remove(self, node: Node) -> int:
        """Remove a node and its subtree: a prefix cache cannot hold a sequence without its prefix.

        Returns:
            The tokens removed; 0 if the node is not in the tree.

        Raises:
            ContextIndexError: the node is the root; use `clear`.
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
        the next leaf. Evicting 0 does nothing.

        Returns:
            The tokens evicted; fewer than requested only if the tree is empty afterwards.
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

    def set_resident(
        self, documents: Documents, tokens: Tokens, *, num_documents: int, partial_tokens: int = 0
    ) -> None:
        """Set the resident part of a sequence to what an engine reported, and confirm it.

        Inserts what is missing of that part. Removes the sequence behind it, with all that no
        engine has confirmed: a prefix cache cannot hold a sequence without its prefix. Confirmed
        parts of other sequences stay until the engine reports their removal, and keep their prefix:
        the document boundaries are estimates.

        Args:
            documents: distinct documents in prompt order.
            tokens: their lengths.
            num_documents: leading documents that are entirely resident.
            partial_tokens: resident tokens of the next document; ignored unless fewer than all.
        """
        is_partial = num_documents < len(documents) and 0 < partial_tokens < tokens[num_documents]
        keep = num_documents + is_partial
        node = self.root
        if keep:
            node = self.insert(documents[:keep], tokens[:keep], is_use=False)
        if not self.holds(node):  # too large for the index
            return
        self._remove_behind(node, documents[keep:])
        if is_partial and not _has_confirmed_child(node):
            for child in list(node.children.values()):
                self.remove(child)
            self.truncate(node, sum(node.tokens[:-1]) + partial_tokens)
        for step in node.ancestors:
            step.confirmed_tokens = min(step.num_tokens, sum(step.tokens))

    def drop_unconfirmed(self, documents: Documents) -> None:
        """Remove the end of an inserted sequence that no engine has confirmed.

        Stops at a node that another sequence extends; that sequence has its own call.
        """
        node = self._last_node(documents)
        while node.is_leaf and node.parent is not None:
            parent = node.parent
            if node.confirmed_tokens >= sum(node.tokens):
                return
            if node.confirmed_tokens:
                self.truncate(node, node.confirmed_tokens)
                return
            self.remove(node)
            node = parent

    def drop_unused(self, documents: Documents, *, num_kept: int, tick: int) -> None:
        """Remove the end of a sequence that has not been used since it was inserted.

        Args:
            documents: the sequence.
            num_kept: leading documents to keep, since they were cached before the insertion.
            tick: tick of the insertion.
        """
        node = self._last_node(documents)
        while node.is_leaf and node.parent is not None and node.last_used == tick:
            parent = node.parent
            if len(parent.context) < num_kept:
                return
            self.remove(node)
            node = parent

    def check_integrity(self) -> None:
        """Compare every derived figure with the tree.

        Raises:
            ContextIndexError: an invariant does not hold; the message gives the numbers.
        """
        num_nodes = num_tokens = 0
        for node in self:
            node.check_integrity()
            num_nodes += 1
            num_tokens += node.num_tokens
        if (num_nodes, num_tokens) != (self.num_nodes, self.num_tokens):
            raise ContextIndexError(
                f"counted {num_nodes} nodes and {num_tokens} tokens, "
                f"recorded {self.num_nodes} and {self.num_tokens}"
            )
        if num_nodes > self.max_nodes:
            raise ContextIndexError(f"{num_nodes} nodes exceed max_nodes={self.max_nodes}")
        if self.capacity_tokens is not None and num_tokens > self.capacity_tokens:
            raise ContextIndexError(
                f"{num_tokens} tokens exceed capacity_tokens={self.capacity_tokens}"
            )
        self._ages.check_integrity({node.last_used for node in self}, num_tokens=num_tokens)

    def _cached_path(self, documents: Documents, tokens: Tokens) -> tuple[tuple[int, int], ...]:
        """Return `IndexEntry.path` of a sequence.

        Nodes may have been inserted with other lengths than `tokens`, which are better known now.
        """
        path: list[tuple[int, int]] = []
        node, at, reached = self.root, 0, 0
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None:
                break
            count = common_length(child.documents, documents, at)
            known, length = sum(child.tokens[:count]), sum(tokens[at : at + count])
            reached += round(child.resident_prefix(count) / known * length)
            path.append((reached, child.last_used))
            if count < len(child.documents):
                break
            node, at = child, at + count
        return tuple(path)

    def _last_node(self, documents: Documents) -> Node:
        """Return the deepest node whose context is a prefix of the sequence."""
        node, at = self.root, 0
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None or child.documents != tuple(documents[at : at + len(child.documents)]):
                break
            node, at = child, at + len(child.documents)
        return node

    def _remove_behind(self, node: Node, documents: Documents) -> None:
        """Remove the path of these documents below a node, from its end up to a confirmed node."""
        path, at = [], 0
        while at < len(documents) and (child := node.children.get(documents[at])) is not None:
            run = child.documents
            if run != tuple(documents[at : at + len(run)]) and child.confirmed_tokens:
                break  # belongs to another sequence
            path.append(child)
            node, at = child, at + len(run)
        for child in reversed(path):
            if _has_confirmed_child(child):
                return
            self.remove(child)

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
            self._leaves.discard(node)
            self._leaves.push(upper)
        return upper

    def _restore(self, node: Node) -> None:
        """Count a node's evicted tokens as resident again: a sequence through it is recomputed."""
        if node.children:
            return  # only leaves lose tokens
        missing = sum(node.tokens) + node.generated_tokens - node.num_tokens
        self._count(node, missing)

    def _measure(self, node: Node, tokens: tuple[int, ...]) -> None:
        """Replace the lengths of a fully resident node's documents by more exact ones."""
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

    def _apply_forecast(self) -> int | None:
        """Update the expected eviction; return `EvictionForecast.first_hidden_batch`."""
        forecast = self.eviction_forecast
        if forecast is None:
            self._ages.expect_eviction(0)
            return None
        retained = int(self.num_tokens * forecast.retained_share)
        self._ages.expect_eviction(self.num_tokens - retained)
        return forecast.first_hidden_batch

    def _unlink_retired(self, num_nodes: int) -> None:
        """Take nodes of cleared trees apart: parents and children refer to each other."""
        retired = self._retired
        while retired and num_nodes:
            retired += retired.pop().unlink()
            num_nodes -= 1

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
        self._leaves.discard(leaf)
        if parent.parent is not None and not parent.children:
            self._leaves.push(parent)


def _check_sequence(documents: Documents, tokens: Tokens) -> None:
    if len(documents) != len(tokens) or min(tokens, default=1) < 1:
        raise ContextIndexError(
            f"{len(documents)} documents need as many lengths of at least 1, got {tokens!r}"
        )
    if len(set(documents)) < len(documents):
        raise ContextIndexError(f"a sequence needs distinct documents, got {documents!r}")


def _has_confirmed_child(node: Node) -> bool:
    return any(child.confirmed_tokens for child in node.children.values())
