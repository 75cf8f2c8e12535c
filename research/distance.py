"""The paper's plan of a batch: merge the closest pair by Eq. 1 (RAGBoost section 4.1), release by
search path (section 5.2). For comparison with `plan_batch`, and to reproduce the paper's examples:
quadratic in time and memory. Knows arrays and keys."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragboost.index.clustering.clusters import ClusterTree, Ints, Merges, Rows, number, walk
from ragboost.ordering.batch import BatchPlan, make_plan

MAX_CONTEXTS = 8_000
"""Contexts that the quadratic clustering accepts; the distance matrix takes up to 1 GB."""

_BLOCK_CELLS = 1 << 20  # pairs of positions compared at a time

Floats = NDArray[np.float32]


def plan_by_distance(
    contexts: Sequence[Sequence[Hashable]], tokens: Mapping[Hashable, int], *, alpha: float = 0.001
) -> BatchPlan:
    """Order the documents and requests of a batch as the paper does."""
    tree = cluster_by_distance(contexts, tokens, alpha=alpha)
    return make_plan(contexts, tree, release_order(tree.search_paths))


def cluster_by_distance(
    contexts: Sequence[Sequence[Hashable]], tokens: Mapping[Hashable, int], *, alpha: float = 0.001
) -> ClusterTree:
    """Cluster contexts by Eq. 1; `alpha`: weight of positions."""
    rows = number(contexts, tokens)
    rank = _sorted_rank(rows.names)
    return walk(rows, merge(rows, alpha=alpha, rank=rank), rank=rank)


def release_order(search_paths: Sequence[Sequence[int]]) -> list[int]:
    """Group requests by the first step of their search path, longer paths first in a group (5.2).

    Groups keep the order of their first requests, so that no request is overtaken without cause.
    Paths of equal length are sorted, so that those with a longer common part are adjacent; equal
    paths keep the given order. A request with an empty path shares nothing and forms a group of its
    own. O(N log N).

    Args:
        search_paths: one per request: child positions from the root of the context index.

    Returns:
        Positions in `search_paths`, in release order.
    """
    group_of: dict[int, int] = {}
    keys = []
    for i, path in enumerate(search_paths):
        group = group_of.setdefault(path[0], i) if path else i
        keys.append((group, -len(path), tuple(path[1:]), i))
    return [key[-1] for key in sorted(keys)]


def context_distance(
    a: NDArray[np.int32], b: NDArray[np.int32], *, alpha: float
) -> NDArray[np.float64]:
    """Compute Eq. 1 between rows: share of documents not in common, plus `alpha` times their shift.

    Args:
        a, b: (pairs, width) document numbers by position, padded with -1.

    Returns:
        (pairs,) distances; infinite where a pair shares nothing.
    """
    step = max(1, _BLOCK_CELLS // max(1, a.shape[1] * b.shape[1]))
    parts = [
        _block_distance(a[at : at + step], b[at : at + step], alpha=alpha)
        for at in range(0, max(1, len(a)), step)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _block_distance(
    a: NDArray[np.int32], b: NDArray[np.int32], *, alpha: float
) -> NDArray[np.float64]:
    same = (a[:, :, None] == b[:, None, :]) & (a >= 0)[:, :, None]
    shift = np.abs(np.arange(a.shape[1])[:, None] - np.arange(b.shape[1]))
    common = same.sum(axis=(1, 2))
    longest = np.maximum((a >= 0).sum(axis=1), (b >= 0).sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = 1 - common / longest + alpha * (same * shift).sum(axis=(1, 2)) / common
    return np.where(common > 0, distance, np.inf)


def merge(rows: Rows, *, alpha: float, rank: Ints) -> Merges:
    """Merge the closest pair repeatedly; a virtual node is the sorted intersection.

    Ties go to the older pair. Contexts that share nothing are never merged.
    """
    count, width = rows.documents.shape
    if count > MAX_CONTEXTS:
        raise ValueError(f"Eq. 1 takes at most {MAX_CONTEXTS} contexts, got {count}")
    if not count:
        return Merges(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), rows.documents)
    contexts = np.full((2 * count, width), -1, dtype=np.int32)
    contexts[:count] = rows.documents
    holders = _holders(rows)
    distances = np.full((count, count), np.inf, dtype=np.float32)  # by slot; see below
    # A merged cluster takes the slot of its first part, so that the matrix never grows.
    node_of = np.arange(count)
    for slot in range(count):
        others = _sharing(contexts[slot], holders, slot)
        distances[slot, others] = distances[others, slot] = context_distance(
            np.broadcast_to(contexts[slot], (len(others), width)), contexts[others], alpha=alpha
        )
    nearest = distances.argmin(axis=1)
    lowest = distances[np.arange(count), nearest]
    left, right = [], []
    while np.isfinite(closest := lowest.min(initial=np.inf)):
        a = int(np.flatnonzero(lowest == closest)[0])
        b = int(nearest[a])
        left.append(int(node_of[a]))
        right.append(int(node_of[b]))
        node = count + len(left) - 1
        common = np.intersect1d(contexts[node_of[a]], contexts[node_of[b]])
        common = common[common >= 0]
        contexts[node, : len(common)] = common[np.argsort(rank[common])]
        node_of[a], node_of[b] = node, -1
        _update(distances, nearest, lowest, contexts, node_of, a, b, alpha=alpha)
    made = slice(count, count + len(left))
    return Merges(np.array(left, dtype=np.int64), np.array(right, dtype=np.int64), contexts[made])


def _holders(rows: Rows) -> list[Ints]:
    row, column = np.nonzero(rows.documents >= 0)
    documents = rows.documents[row, column]
    order = np.argsort(documents, kind="stable")
    bounds = np.cumsum(np.bincount(documents, minlength=len(rows.names)))[:-1]
    return np.split(row[order], bounds)


def _sharing(context: NDArray[np.int32], holders: list[Ints], before: int) -> Ints:
    lists = [holders[document] for document in context[context >= 0]]
    if not lists:
        return np.zeros(0, dtype=np.int64)
    sharing = np.unique(np.concatenate(lists))
    return sharing[sharing < before]


def _update(
    distances: Floats,
    nearest: Ints,
    lowest: Floats,
    contexts: NDArray[np.int32],
    node_of: Ints,
    a: int,
    b: int,
    *,
    alpha: float,
) -> None:
    others = np.flatnonzero(np.isfinite(distances[a]) | np.isfinite(distances[b]))
    others = others[(node_of[others] >= 0) & (others != a)]
    distances[b, :] = distances[:, b] = distances[a, :] = distances[:, a] = np.inf
    merged = contexts[node_of[a]]
    distances[a, others] = distances[others, a] = context_distance(
        np.broadcast_to(merged, (len(others), len(merged))), contexts[node_of[others]], alpha=alpha
    )
    lowest[b] = np.inf
    changed = np.append(others, a)
    stale = changed[np.isin(nearest[changed], (a, b)) | (changed == a)]
    nearest[stale] = distances[stale].argmin(axis=1)
    lowest[stale] = distances[stale, nearest[stale]]
    better = others[distances[others, a] < lowest[others]]
    nearest[better], lowest[better] = a, distances[better, a]


def _sorted_rank(names: list[Hashable]) -> Ints:
    try:
        order = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[arg-type]
    except TypeError:  # ids of several types
        order = sorted(range(len(names)), key=lambda i: str(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank
