"""Cluster contexts by one of two linkages.

Maps linkages to their files. Does not know requests or caches.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal

import numpy as np

from ragboost.index.clustering import distance, large
from ragboost.index.clustering.clusters import ClusterTree, Ints, number
from ragboost.index.clustering.walk import walk

Linkage = Literal["savings", "distance"]


def cluster(
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    *,
    linkage: Linkage = "savings",
    alpha: float = 0.001,
    exact_contexts: int = large.EXACT_CONTEXTS,
) -> ClusterTree:
    """Cluster contexts by the documents they share. Deterministic.

    Args:
        linkage: `savings` merges the pair whose common documents have the most tokens; `distance`
            is the paper's (Eq. 1), quadratic in time and memory.
        alpha: weight of positions in Eq. 1.
        exact_contexts: with `savings`, larger batches are clustered in parts.
    """
    rows = number(contexts, tokens)
    if linkage == "distance":
        rank = _sorted_rank(rows.names)
        return walk(rows, distance.merge(rows, alpha=alpha, rank=rank), rank=rank)
    merges = large.merge(rows, exact_contexts=exact_contexts)
    return walk(rows, merges, rank=np.arange(len(rows.names)))


def _sorted_rank(names: list[Hashable]) -> Ints:
    try:
        order = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[arg-type]
    except TypeError:  # ids of several types
        order = sorted(range(len(names)), key=lambda i: str(names[i]))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    return rank
