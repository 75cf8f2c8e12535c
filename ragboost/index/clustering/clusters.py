"""Inputs and results of the clustering: numbered contexts, merges, and the cluster tree, by a
depth-first walk.

Knows contexts as rows of document numbers. Does not know texts, requests or caches.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Merges(NamedTuple):
    """A binary forest over `n` contexts: node `n + i` is the parent of `left[i]` and `right[i]`."""

    left: Ints  # (merges,) nodes, each below its parent
    right: Ints
    # (merges, width) documents common to everything below the node, padded with -1.
    shared: NDArray[np.int32]


class Rows(NamedTuple):
    """Contexts as numbers."""

    # (contexts, width) document numbers in relevance order, padded with -1. Numbers are assigned
    # by falling frequency, ties by first appearance.
    documents: NDArray[np.int32]
    tokens: Ints  # (documents,) length of each document
    names: list[Hashable]  # the documents by number


class ClusterTree(NamedTuple):
    """The clustered contexts, in depth-first order."""

    leaves: list[int]  # (contexts,) positions of the contexts in depth-first order
    # For each context, by position, the documents that it shares with others, in the order in
    # which the tree adds them from the root down.
    prefixes: list[tuple[Hashable, ...]]
    # For each context, by position, the child positions from the root.
    search_paths: list[tuple[int, ...]]
    # Tokens that an unbounded prefix cache saves when the contexts are sent in this order with
    # these prefixes; the sum of the merges' shared tokens.
    saved_tokens: int


MAX_WIDTH = 256
"""Documents of a context used for clustering: its most frequent ones in the batch."""


def number(contexts: Sequence[Sequence[Hashable]], tokens: Mapping[Hashable, int]) -> Rows:
    """Replace documents by numbers; a document that a context repeats counts once."""
    distinct = [tuple(dict.fromkeys(context)) for context in contexts]
    first: dict[Hashable, int] = {}
    flat = [first.setdefault(document, len(first)) for context in distinct for document in context]
    lengths = np.fromiter(map(len, distinct), dtype=np.int64, count=len(distinct))
    appearance = np.asarray(flat, dtype=np.int64)
    by_frequency = np.argsort(-np.bincount(appearance, minlength=len(first)), kind="stable")
    rank = np.empty(len(first), dtype=np.int32)
    rank[by_frequency] = np.arange(len(first), dtype=np.int32)
    numbers = rank[appearance]
    if (lengths > MAX_WIDTH).any():
        numbers, lengths = _most_frequent(numbers, lengths)
    documents = np.full((len(distinct), int(lengths.max(initial=0))), -1, dtype=np.int32)
    documents[np.arange(documents.shape[1]) < lengths[:, None]] = numbers
    in_order = list(first)
    names = [in_order[i] for i in by_frequency.tolist()]
    return Rows(documents, np.array([tokens[name] for name in names], dtype=np.int64), names)


def _most_frequent(numbers: NDArray[np.int32], lengths: Ints) -> tuple[NDArray[np.int32], Ints]:
    kept = []
    for context in np.split(numbers, np.cumsum(lengths)[:-1]):
        if len(context) > MAX_WIDTH:
            context = context[np.sort(np.argpartition(context, MAX_WIDTH)[:MAX_WIDTH])]
        kept.append(context)
    return np.concatenate(kept), np.minimum(lengths, MAX_WIDTH)


def walk(rows: Rows, merges: Merges, *, rank: Ints) -> ClusterTree:
    """Order the contexts so that those with a common prefix are adjacent; `rank` within a node."""
    count = len(rows.documents)
    left, right = merges.left.tolist(), merges.right.tolist()
    shared = [_members(row, rank) for row in merges.shared]
    size = np.append(rows.tokens, 0)[merges.shared].sum(axis=1)
    is_child = np.zeros(count + len(left), dtype=bool)
    is_child[merges.left] = is_child[merges.right] = True
    leaves: list[int] = []
    prefixes: list[tuple[int, ...]] = [()] * count
    paths: list[tuple[int, ...]] = [()] * count
    # Entries: a node, the prefix above it, its search path.
    roots = np.flatnonzero(~is_child)
    stack: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
    stack.extend((node, (), (at,)) for at, node in reversed(list(enumerate(roots.tolist()))))
    while stack:
        node, prefix, path = stack.pop()
        if node < count:
            leaves.append(node)
            prefixes[node], paths[node] = prefix, path
            continue
        above = set(prefix)
        prefix += tuple(document for document in shared[node - count] if document not in above)
        children = _children(node, left, right, shared, count)
        stack.extend(
            (child, prefix, (*path, at)) for at, child in reversed(list(enumerate(children)))
        )
    names = rows.names
    return ClusterTree(
        leaves,
        [tuple(names[document] for document in prefix) for prefix in prefixes],
        paths,
        int(size.sum()),
    )


def _members(row: NDArray[np.int32], rank: Ints) -> list[int]:
    documents = row[row >= 0]
    return documents[np.argsort(rank[documents])].tolist()  # type: ignore[no-any-return]


def _children(
    node: int, left: list[int], right: list[int], shared: list[list[int]], count: int
) -> list[int]:
    size = len(shared[node - count])
    children: list[int] = []
    stack = [node]
    while stack:
        current = stack.pop()
        if current == node or (current >= count and len(shared[current - count]) == size):
            stack += [right[current - count], left[current - count]]
        else:
            children.append(current)
    return children
