"""The paper's clustering: merge the closest pair by Eq. 1 (RAGBoost section 4.1).

For comparison, and to reproduce the paper's examples: time and memory grow with the square of the
number of contexts that share documents. Knows arrays only.
"""

import numpy as np
from numpy.typing import NDArray

from ragboost.errors import RequestError
from ragboost.index.clustering.clusters import Ints, Merges, Rows

MAX_CONTEXTS = 8_000
"""Contexts that the quadratic clustering accepts; the distance matrix takes up to 1 GB."""

_BLOCK_CELLS = 1 << 20  # pairs of positions compared at a time

Floats = NDArray[np.float32]


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
        raise RequestError(
            f"linkage 'distance' takes at most {MAX_CONTEXTS} contexts, got {count}: "
            "use linkage 'savings'",
            param="linkage",
        )
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
