"""Neighbours of documents by embeddings, by a graph and by co-occurrence, as users may write them
into the file of `precompute --neighbours`. Indices, the closest last; of equally close ones the
first in the corpus is the closest."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ragboost.errors import ChunkCacheError
from ragboost.retrieval.neighbours import Neighbours
from ragboost.retrieval.retriever import best

_BATCH = 256


def by_vectors(vectors: npt.NDArray[np.float32], *, top_n: int) -> Neighbours:
    """Compare embeddings (documents, dimension) by their inner product."""
    matrix = np.ascontiguousarray(vectors, dtype=np.float32)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise ChunkCacheError(
            f"vectors must be finite numbers of shape (documents, dimension), got {matrix.shape}"
        )
    top_n = min(top_n, len(matrix) - 1)
    if top_n <= 0:
        return [()] * len(matrix)
    result: Neighbours = []
    for start in range(0, len(matrix), _BATCH):
        for number, scores in enumerate(matrix[start : start + _BATCH] @ matrix.T, start):
            scores[number] = np.nextafter(scores.min(), -np.inf)  # not of itself
            result.append(tuple(best(scores, top_n)[::-1].tolist()))
    return result


def by_edges(
    edges: Iterable[tuple[int, int, float]], *, num_documents: int, top_n: int
) -> Neighbours:
    """Follow directed edges (document, neighbour, weight); weights of parallel edges are added."""
    weight: list[Counter[int]] = [Counter() for _ in range(num_documents)]
    for source, target, value in edges:
        if source != target:
            weight[source][target] += value  # type: ignore[assignment]  # counts may be fractions
    return [_closest(counts, top_n) for counts in weight]


def by_cooccurrence(
    requests: Iterable[Sequence[int]], *, num_documents: int, top_n: int
) -> Neighbours:
    """Count the requests that two documents were retrieved for together."""
    counts: list[Counter[int]] = [Counter() for _ in range(num_documents)]
    for documents in requests:
        for one, other in combinations(sorted(set(documents)), 2):
            counts[one][other] += 1
            counts[other][one] += 1
    return [_closest(each, top_n) for each in counts]


def _closest(weights: Counter[int], top_n: int) -> tuple[int, ...]:
    ranked = sorted(weights, key=lambda number: (-weights[number], number))
    return tuple(reversed(ranked[:top_n]))
