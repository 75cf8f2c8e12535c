"""Plan a few waiting requests together, against the current prefix cache (RAGBoost section 5).

Requests are grouped like a batch, but a group must pay off: joining it may cost a request the
cached prefix that it would have had alone. Knows documents as keys.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from ragboost.index import ContextIndex, PrefixMatch
from ragboost.ordering.request import OrderPolicy

Documents = Sequence[Hashable]
Tokens = npt.NDArray[np.int64]
Columns = npt.NDArray[np.intp]


class WaitingContext(NamedTuple):
    """The distinct documents of a request, most relevant first, and their lengths in tokens."""

    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, documents: Documents, tokens: Mapping[Hashable, int]) -> "WaitingContext":
        return cls(tuple(documents), tuple([tokens[document] for document in documents]))


class Shared(NamedTuple):
    """Tokens that the requests of a window share; each document has a column."""

    tokens: Tokens  # of each pair of requests: (n, n)
    holds: npt.NDArray[np.bool_]  # which request holds which document: (n, columns)
    columns: list[Columns]  # the documents of each request, most relevant first
    lengths: Tokens  # in tokens, by column

    @classmethod
    def of(cls, contexts: Sequence[WaitingContext]) -> "Shared":
        """Compare each request with all others."""
        places: dict[Hashable, int] = {}
        columns = [
            np.array([places.setdefault(d, len(places)) for d in context.documents], np.intp)
            for context in contexts
        ]
        lengths = np.zeros(len(places), np.int64)
        holds = np.zeros((len(contexts), len(places)), np.bool_)
        for row, (context, held) in enumerate(zip(contexts, columns, strict=True)):
            lengths[held] = context.tokens
            holds[row, held] = True
        tokens = np.array([shared_tokens(holds, held, lengths) for held in columns])
        return cls(tokens, holds, columns, lengths)


def shared_tokens(holds: npt.NDArray[np.bool_], columns: Columns, lengths: Tokens) -> Tokens:
    """Return the tokens that each row shares with a set of documents."""
    shared: Tokens = holds.take(columns, axis=1) @ lengths[columns]
    return shared


@dataclass(slots=True, eq=False)
class Group:
    """A request, or two groups that share their common documents first."""

    documents: Documents  # that all its requests share, in the relevance order of one of them
    columns: Columns  # of these documents
    prefix: Documents  # the longest cached prefix within these
    cached_tokens: int  # of the prefix
    number: int  # of a single request its position; merged groups count on from there
    parts: tuple["Group", ...] = ()  # in the order of their numbers
    parent: Optional["Group"] = None

    def first_leaf(self) -> "Group":
        """Return the request to send first, of those that share most."""
        group = self
        while group.parts:
            group = group.parts[-1]
        return group

    def chain(self) -> "list[Group]":
        """Return the groups from the outermost one to this."""
        group, chain = self, [self]
        while group.parent is not None:
            group = group.parent
            chain.append(group)
        return chain[::-1]


class Groups:
    """The groups of a window, one per row; a merged group takes the row of its first part.

    Args:
        search: finds the longest cached prefix within documents of these lengths.
    """

    def __init__(
        self,
        contexts: Sequence[WaitingContext],
        shared: Shared,
        *,
        search: Callable[[Documents, Sequence[int]], PrefixMatch],
    ) -> None:
        self._search = search
        self._lengths = shared.lengths
        self.leaves = [
            Group(context.documents, columns, *search(*context)[:2], position)
            for position, (context, columns) in enumerate(
                zip(contexts, shared.columns, strict=True)
            )
        ]
        self._groups = list(self.leaves)
        self._num_groups = len(self.leaves)
        self._alive = np.ones(len(contexts), dtype=bool)
        self._shared, self._holds = shared.tokens, shared.holds  # of the groups, by row
        self._cached = np.array([group.cached_tokens for group in self.leaves], dtype=np.int64)
        # Gains of merging row and column, row < column, or upper bounds: the cached prefix of the
        # common documents is no longer than that of either group.
        self._gains = np.triu(self._shared - np.maximum.outer(self._cached, self._cached), 1)
        self._is_exact = np.minimum.outer(self._cached, self._cached) == 0
        self._measured: dict[tuple[int, int], Group] = {}  # by row and column
        self._partner = self._gains.argmax(axis=1)  # of each row, the first with the greatest gain
        self._best = self._gains.max(axis=1)

    def longest_cached(self) -> Group:
        """Return the group with the longest cached prefix; of equal ones that merged last."""
        alive = [self._groups[row] for row in np.flatnonzero(self._alive)]
        return max(alive, key=lambda group: (group.cached_tokens, group.number))

    def merge(self) -> None:
        """Merge the pair with the greatest gain until no pair has any; of equal ones the first."""
        while True:
            a = int(self._best.argmax())
            if self._best[a] <= 0:
                return
            b = int(self._partner[a])
            if self._is_exact[a, b]:
                self._join(a, b)
            else:
                self._measure(a, b)

    def _measure(self, a: int, b: int) -> None:
        """Replace an upper bound by the gain."""
        merged = self._intersect(a, b)
        cached = merged.cached_tokens - int(self._cached[a]) - int(self._cached[b])
        self._gains[a, b] = int(self._shared[a, b]) + cached
        self._is_exact[a, b] = True
        row = self._gains[a]
        self._partner[a] = partner = row.argmax()
        self._best[a] = row[partner]

    def _intersect(self, a: int, b: int) -> Group:
        """Return the group that two would be."""
        first, second = (a, b) if self._groups[a].number < self._groups[b].number else (b, a)
        parts = (self._groups[first], self._groups[second])
        merged = self._measured.get((a, b))
        if merged is None or merged.parts != parts:
            is_common = self._holds[second].take(parts[0].columns)
            documents = list(compress(parts[0].documents, is_common.tolist()))
            columns = parts[0].columns[is_common]
            prefix, cached = self._cached_prefix(documents, columns, parts)
            merged = Group(documents, columns, prefix, cached, number=-1, parts=parts)
            self._measured[a, b] = merged
        return merged

    def _cached_prefix(
        self, documents: Documents, columns: Columns, parts: tuple[Group, Group]
    ) -> tuple[Documents, int]:
        shorter = min(parts, key=lambda part: part.cached_tokens)
        if not shorter.cached_tokens:
            return (), 0
        common = frozenset(documents)
        for part in parts:
            if part.cached_tokens == shorter.cached_tokens and common.issuperset(part.prefix):
                return part.prefix, part.cached_tokens  # there is no longer one
        match = self._search(documents, self._lengths[columns].tolist())
        return match.documents, min(match.cached_tokens, shorter.cached_tokens)

    def _join(self, a: int, b: int) -> None:
        merged = self._intersect(a, b)
        for part in merged.parts:
            part.parent = merged
        merged.number = self._num_groups = self._num_groups + 1
        self._groups[a] = merged
        self._alive[b] = False
        self._holds[a] &= self._holds[b]
        self._cached[a] = merged.cached_tokens
        shared = shared_tokens(self._holds, merged.columns, self._lengths)
        self._shared[a] = self._shared[:, a] = shared
        self._is_exact[a] = self._is_exact[:, a] = np.minimum(self._cached, self._cached[a]) == 0
        bounds = (shared - np.maximum(self._cached, self._cached[a])) * self._alive
        gains, partner, best = self._gains, self._partner, self._best
        gains[b] = gains[:, b] = 0
        gains[a, a + 1 :] = bounds[a + 1 :]
        gains[:a, a] = bounds[:a]
        is_stale = (partner == a) | (partner == b) | (gains[:, a] >= best)
        is_stale[[a, b]] = True
        rows = np.flatnonzero(is_stale)
        partner[rows] = columns = gains[rows].argmax(axis=1)
        best[rows] = gains[rows, columns]


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
    """Plan which request to send next; the others are planned again with later ones.

    Two groups A and B with cached prefixes of m(A) and m(B) tokens merge if sharing their
    common documents R first saves more than following their own prefixes:
    tokens(R) + m(R) - m(A) - m(B) > 0, the best pair first. The first request of the group with
    the longest cached prefix is sent if the first request of the window can wait for it, and
    else that one, with its documents in the order that its group can follow. Changes nothing in
    the index: what is planned may never be sent.

    Args:
        contexts: distinct documents of each request, most relevant first; the first request is
            sent if no other may overtake it.
        budget_tokens: uncached tokens that may be sent before the first request.
        policy: orders documents within a group; None: relevance order.
    """
    waiting = [WaitingContext.of(context, tokens) for context in contexts]
    groups = Groups(waiting, Shared.of(waiting), search=index.search)
    groups.merge()
    leaf = groups.longest_cached().first_leaf()
    order, cached_tokens = _order_chain(index, leaf, tokens, policy=policy)
    if leaf is not groups.leaves[0]:
        uncached = sum([tokens[document] for document in order]) - cached_tokens
        if uncached > budget_tokens:
            leaf = groups.leaves[0]
            order, cached_tokens = _order_chain(index, leaf, tokens, policy=policy)
    return NextRequest(leaf.number, tuple(order), cached_tokens)


def _order_chain(
    index: ContextIndex, leaf: Group, tokens: Mapping[Hashable, int], *, policy: OrderPolicy | None
) -> tuple[list[Hashable], int]:
    """Order a request's documents group by group, from the outermost group to the request.

    The documents of an outer group come first, so that all its requests share a prefix. Within
    a group the cached prefix comes first, then the others as the policy says.

    Returns:
        The order, and its cached tokens.
    """
    order: list[Hashable] = []
    cached_tokens = 0
    for group in leaf.chain():
        documents = group.documents
        if group.cached_tokens > cached_tokens:
            cached_tokens = group.cached_tokens
            lengths = [tokens[document] for document in documents]
            prefix = index.search(documents, lengths).documents
            if set(prefix[: len(order)]) == set(order):
                order = list(prefix)
        placed = set(order)
        rest = [document for document in documents if document not in placed]
        if rest:
            order += rest if policy is None else policy.order(rest, tokens, prefix=order)
    return order, index.cached_prefix(order).cached_tokens
