"""The context index: which document sequences a prefix cache holds (RAGBoost section 4).

One index mirrors one prefix cache: one backend, model and cache salt. It is searched for requests,
and records what they send and what engines report. Does not know texts or the engines' events. Not
thread-safe: the caller holds a lock.
"""

from collections.abc import Hashable
from heapq import heappop, heappush
from typing import NamedTuple

from ragboost.index.context_tree import ContextTree, Documents, Seat, Tokens
from ragboost.index.node import Node, common_length


class PrefixMatch(NamedTuple):
    documents: tuple[Hashable, ...]  # the prefix in cached order; all belong to the request
    cached_tokens: int  # number of its tokens that are resident
    node: Node  # the node in which the prefix ends; the root if nothing matches
    num_documents: int  # number of the node's own documents that belong to the prefix


class IndexEntry(NamedTuple):
    """The record of one request in the context index."""

    search_path: tuple[int, ...]  # child positions from the root (paper section 4.1)
    cached_tokens: int  # tokens of the sequence that were resident before
    # What was inserted, in prompt order; empty for a later turn.
    documents: tuple[Hashable, ...] = ()
    tokens: tuple[int, ...] = ()  # lengths of `documents`
    num_cached: int = 0  # number of leading documents that had resident tokens before
    # For each node of that cached prefix, the resident tokens up to its end, by `tokens`, and the
    # tick of its last use.
    path: tuple[tuple[int, int], ...] = ()
    tick: int = 0  # tick of the insertion
    # Leading documents that the engine computes exactly, so that its prefix cache holds them
    # afterwards; behind them it reuses stored chunks. None: all.
    num_exact: int | None = None
    bought_tokens: int = 0  # of these, not cached before, though they might have been reused


class ContextIndex(ContextTree):
    """A radix tree over the document sequences that a prefix cache holds.

    One search compares at most `max_visits` nodes, including the root; from the last of them it
    only descends, to any depth.
    """

    def __init__(
        self,
        *,
        capacity_tokens: int | None = None,
        max_nodes: int = 200_000,
        max_visits: int = 32,
        seat: Seat | None = None,
    ) -> None:
        super().__init__(capacity_tokens=capacity_tokens, max_nodes=max_nodes, seat=seat)
        self.max_visits = max_visits

    def search(self, documents: Documents, tokens: Tokens) -> PrefixMatch:
        """Find the cached prefix of greatest length whose documents all belong to the request.

        Best-first search, longest match first. Exact if at most `max_visits` nodes need expanding;
        otherwise the best of those visited, which include the greedy descent to its end (paper
        section 4.2).
        Ties go to the prefix found first: among the children of a node, the one that begins with
        the more relevant document. Changes nothing.
        """
        first_hidden_batch, evict_through = self._apply_forecast(), self._ages.evict_through_tick
        position = {document: i for i, document in enumerate(documents)}
        requested = position.keys()
        total = sum(tokens)
        root = best_node = self.root
        best_count = best_tokens = 0
        # Entries: (-matched tokens, order of discovery, node, documents with which a child begins).
        # Sequences hold distinct documents, so none of the latter occurs on the path to the node.
        frontier = [(0, 0, root, root.children.keys() & requested)]
        found = visits = 0
        while frontier and best_tokens < total:
            visits += 1
            negative, _, node, starts = heappop(frontier)
            if visits >= self.max_visits:  # no more alternatives: only the descent below this node
                frontier.clear()
            children = node.children
            for start in sorted(starts, key=position.__getitem__) if len(starts) > 1 else starts:
                child = children[start]
                if child.last_used <= evict_through:
                    continue
                if first_hidden_batch is not None and child.batch >= first_hidden_batch:
                    continue
                run = child.documents
                count = 0
                for document in run:
                    if document not in position:
                        break
                    count += 1
                # Inlined `resident_prefix`: this runs some thirty times a search.
                length = child.tokens[0] if count == 1 else sum(child.tokens[:count])
                matched = (length if length < child.num_tokens else child.num_tokens) - negative
                if matched > best_tokens:
                    best_node, best_count, best_tokens = child, count, matched
                if count == len(run) and child.children:
                    after = child.children.keys() & requested
                    if after:
                        found += 1
                        heappush(frontier, (-matched, found, child, after))
        if best_node.parent is None:
            return PrefixMatch((), 0, root, 0)
        count = best_node.resident_documents(best_count)
        prefix = best_node.parent.context + best_node.documents[:count]
        return PrefixMatch(prefix, best_tokens, best_node, count)

    def cached_prefix(self, documents: Documents, tokens: Tokens = ()) -> IndexEntry:
        """Measure the resident part of a sequence in its given order. Changes nothing.

        The lengths are better known than when the nodes were inserted; without them the entry has
        no `path`.
        """
        hidden, ages = self._apply_forecast(), self._ages
        node, at, cached, reached = self.root, 0, 0, 0
        tick = left = 0  # `left`: tokens last used at `tick` that will be retained
        path = []
        while at < len(documents):
            child = node.children.get(documents[at])
            if child is None or child.last_used <= ages.evict_through_tick:
                break
            if hidden is not None and child.batch >= hidden:
                break
            count = common_length(child.documents, documents, at)
            if child.last_used != tick:
                tick, left = child.last_used, ages.retained_tokens(child.last_used)
            if hidden is not None and left < child.num_tokens:
                break  # a radix tree evicts nodes whole
            resident = child.resident_prefix(count)
            if tokens:
                share = resident / sum(child.tokens[:count])
                reached += round(share * sum(tokens[at : at + count]))
                path.append((reached, child.last_used))
            kept = min(resident, left)
            left -= kept
            cached += kept
            at += child.resident_documents(count, within=kept)
            if count < len(child.documents) or kept < resident:
                break
            node = child
        return IndexEntry((), cached, num_cached=at, path=tuple(path))

    def record_leading(
        self,
        documents: Documents,
        tokens: Tokens,
        *,
        num_exact: int | None = None,
        bought_tokens: int = 0,
    ) -> IndexEntry:
        """Insert documents sent at the front of a prompt, up to `num_exact` (see `IndexEntry`);
        report what was cached of them before."""
        before = cached = self.cached_prefix(documents, tokens)
        forecast = self.eviction_forecast
        if forecast is not None and not forecast.admit(sum(tokens) - before.cached_tokens):
            cached = self.cached_prefix(documents)
        node = self.insert(documents[:num_exact], tokens[:num_exact])
        if forecast is not None:  # the next batch computes what was not cached
            for step in reversed(node.ancestors):
                if len(step.context) <= cached.num_cached:
                    break
                step.batch = forecast.next_batch
        return IndexEntry(
            node.search_path,
            cached.cached_tokens,
            documents=tuple(documents),
            tokens=tuple(tokens),
            num_cached=cached.num_cached,
            path=before.path,
            tick=self._tick,
            num_exact=num_exact,
            bought_tokens=bought_tokens,
        )

    def record_turn(
        self, leading: Documents, tokens: Tokens, *, history_tokens: int, turn_tokens: int
    ) -> IndexEntry:
        """Extend a conversation's node by a later turn (paper section 4.1, multi-turn flag).

        The turn's own documents do not become a child of the node: questions and answers precede
        them, so no other request can reuse them.
        """
        if not leading:
            return IndexEntry((), 0)
        cached_tokens = self.cached_prefix(leading).cached_tokens
        node = self.insert(leading, tokens, multi_turn=True)
        # The engine recomputes what was evicted: afterwards the whole conversation is resident.
        cached_history = min(node.generated_tokens, history_tokens)
        self.extend(node, history_tokens - cached_history + turn_tokens)
        return IndexEntry(node.search_path, cached_tokens + cached_history)

    def set_resident(
        self, documents: Documents, tokens: Tokens, *, num_documents: int, partial_tokens: int = 0
    ) -> None:
        """Set the resident part of a sequence to what an engine reported, and confirm it.

        Inserts what is missing of that part. Removes the sequence behind it, with all that no
        engine has confirmed: a prefix cache cannot hold a sequence without its prefix. Confirmed
        parts of other sequences stay until the engine reports their removal, and keep their prefix:
        the document boundaries are estimates.

        Args:
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
        """Remove the end of a sequence that has not been used since it was inserted at `tick`, but
        for `num_kept` leading documents, which were cached before."""
        node = self._last_node(documents)
        while node.is_leaf and node.parent is not None and node.last_used == tick:
            parent = node.parent
            if len(parent.context) < num_kept:
                return
            self.remove(node)
            node = parent

    def _last_node(self, documents: Documents) -> Node:
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

    def _apply_forecast(self) -> int | None:
        forecast = self.eviction_forecast
        if forecast is None:
            self._ages.expect_eviction(0)
            return None
        retained = int(self.num_tokens * forecast.retained_share)
        self._ages.expect_eviction(self.num_tokens - retained)
        return forecast.first_hidden_batch


def _has_confirmed_child(node: Node) -> bool:
    return any(child.confirmed_tokens for child in node.children.values())
