"""Plan a few waiting requests together, against the current prefix cache (RAGBoost section 5).

Requests are grouped like a batch, but a group must pay off: joining it may cost a request the
cached prefix that it would have had alone. Knows documents as keys.
"""

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ragboost.index import ContextIndex
from ragboost.ordering.request import OrderPolicy

Documents = Sequence[Hashable]


class NextRequest(NamedTuple):
    position: int  # in the window
    order: tuple[Hashable, ...]  # its documents, in prompt order
    cached_tokens: int  # of them


def plan_next(
    index: ContextIndex,
    contexts: Sequence[Documents],
    tokens: Mapping[Hashable, int],
    *,
    budget_tokens: float,
    policy: OrderPolicy | None = None,
) -> NextRequest:
    """Plan which request of a window to send next; the others are planned again with later ones.

    Two groups A and B with cached prefixes of m(A) and m(B) tokens merge if sharing their common
    documents R first saves more than following their own prefixes:
    tokens(R) + m(R) - m(A) - m(B) > 0, the best pair first. The first request of the group with the
    longest cached prefix is sent if the first request of the window can wait for it, and else that
    one, with its documents in the order that its group can follow. Work grows with the number of
    pairs that share documents: meant for up to a few hundred requests. Changes nothing: what is
    planned may never be sent.

    Args:
        contexts: distinct documents of each request, most relevant first; the first request is
            sent if no other may overtake it.
        budget_tokens: uncached tokens that may be sent before the first request.
        policy: orders documents within a group; None: relevance order.
    """
    groups = _Groups(index, contexts, tokens)
    groups.merge()
    first = next(leaf for leaf in groups.leaves(sorted(groups.alive)) if leaf.context == 0)
    best = max(groups.alive, key=lambda group: (groups.cached[group], group))
    leaf = next(groups.leaves([best]))
    order = _order_chain(index, leaf.chain, tokens, policy=policy)
    cached_tokens = index.cached_prefix(order).cached_tokens
    if leaf.context != 0:
        uncached = sum(tokens[document] for document in order) - cached_tokens
        if uncached > budget_tokens:
            leaf, order = first, _order_chain(index, first.chain, tokens, policy=policy)
            cached_tokens = index.cached_prefix(order).cached_tokens
    return NextRequest(leaf.context, tuple(order), cached_tokens)


class _Leaf(NamedTuple):
    """A request in the tree of groups, and the documents of the groups from the outermost to it."""

    context: int
    chain: tuple[Documents, ...]


class _Groups:
    """Groups of requests, numbered: single requests first, merged groups behind them."""

    def __init__(
        self, index: ContextIndex, contexts: Sequence[Documents], tokens: Mapping[Hashable, int]
    ) -> None:
        self.index = index
        self.tokens = tokens
        # By group: the documents that all its requests share, in the relevance order of one of
        # them, and the tokens of the longest cached prefix within these.
        self.documents: list[Documents] = [list(context) for context in contexts]
        self.sets = [frozenset(context) for context in contexts]
        # By group, tokens of the longest cached prefix within these.
        self.cached = [self._cached_tokens(context) for context in contexts]
        self.parts: dict[int, tuple[int, int]] = {}  # of a merged group
        self.alive = set(range(len(contexts)))  # groups that are not part of another one
        # Entries: (-gain, is exact, groups). A gain is an upper bound until the pair is popped.
        self._pairs: list[tuple[int, bool, int, int]] = []

    def merge(self) -> None:
        """Merge the pair with the greatest gain until no pair has any."""
        for a, b in self._sharing_pairs():
            self._push_bound(a, b)
        while self._pairs:
            _, is_exact, a, b = heapq.heappop(self._pairs)
            if a not in self.alive or b not in self.alive:
                continue
            common = [document for document in self.documents[a] if document in self.sets[b]]
            cached = self._cached_tokens(common) if min(self.cached[a], self.cached[b]) else 0
            gain = self._length(common) + cached - self.cached[a] - self.cached[b]
            if is_exact:
                self._join(a, b, common, cached)
            elif gain > 0:
                heapq.heappush(self._pairs, (-gain, True, a, b))

    def leaves(self, roots: Sequence[int]) -> Iterator["_Leaf"]:
        """Yield the requests of these groups, those of the last one first."""
        stack: list[tuple[int, tuple[int, ...]]] = [(group, ()) for group in roots]
        while stack:
            group, above = stack.pop()
            if group in self.parts:
                stack.extend((part, (*above, group)) for part in self.parts[group])
                continue
            yield _Leaf(group, tuple(self.documents[step] for step in (*above, group)))

    def _join(self, a: int, b: int, common: Documents, cached: int) -> None:
        merged = len(self.documents)
        self.documents.append(common)
        self.sets.append(frozenset(common))
        self.cached.append(cached)
        self.parts[merged] = (a, b)
        self.alive -= {a, b}
        for other in self.alive:
            self._push_bound(other, merged)
        self.alive.add(merged)

    def _push_bound(self, a: int, b: int) -> None:
        """Queue a pair by an upper bound of its gain: the cached prefix of the common documents is
        no longer than that of either group."""
        bound = self._length(self.sets[a] & self.sets[b]) - max(self.cached[a], self.cached[b])
        if bound > 0:
            heapq.heappush(self._pairs, (-bound, False, a, b))

    def _sharing_pairs(self) -> list[tuple[int, int]]:
        holders: dict[Hashable, list[int]] = {}
        for i, context in enumerate(self.documents):
            for document in context:
                holders.setdefault(document, []).append(i)
        return sorted(
            {(a, b) for sharing in holders.values() for b in sharing for a in sharing if a < b}
        )

    def _length(self, documents: Documents | frozenset[Hashable]) -> int:
        return sum(self.tokens[document] for document in documents)

    def _cached_tokens(self, documents: Documents) -> int:
        lengths = [self.tokens[document] for document in documents]
        return self.index.search(documents, lengths).cached_tokens


def _order_chain(
    index: ContextIndex,
    chain: Sequence[Documents],
    tokens: Mapping[Hashable, int],
    *,
    policy: OrderPolicy | None = None,
) -> list[Hashable]:
    """Order a request's documents group by group, from the outermost group to the request itself.

    The documents of an outer group come first, so that all its requests share a prefix. Within a
    group the cached prefix comes first, then the others as the policy says.
    """
    order: list[Hashable] = []
    for documents in chain:
        match = index.search(documents, [tokens[document] for document in documents])
        if set(match.documents[: len(order)]) == set(order):
            order = list(match.documents)
        placed = set(order)
        rest = [document for document in documents if document not in placed]
        order += rest if policy is None else policy.order(rest, tokens, prefix=order)
    return order
