"""Walk a cluster forest depth-first and give each context its prefix and search path.

A merge that shares no more than its parent is replaced by its children, so a node of the walk may
have many. Not recursive: chains may be as long as the batch.
"""

import numpy as np
from numpy.typing import NDArray

from ragboost.index.clustering.clusters import ClusterTree, Ints, Merges, Rows


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
