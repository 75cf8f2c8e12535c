"""Find the chunks of a corpus that are likely to be retrieved together (FusionRAG section 3.1).

Documents are indices. Every function returns the neighbours of each document, the closest *last*,
next to the chunk itself; of equally close ones the first in the corpus is the closest.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from ragboost.errors import ChunkCacheError
from ragboost.retrieval.retriever import Retriever, best, searchable_text
from ragboost.types import Document

Neighbours = list[tuple[int, ...]]

_BATCH = 256


def by_retriever(retriever: Retriever, documents: Sequence[Document], *, top_n: int) -> Neighbours:
    """Query a retriever with each document; equal documents are no neighbours."""
    first = {document.key: number for number, document in reversed(list(enumerate(documents)))}
    queries = [searchable_text(document) for document in documents]
    # Copies of a document come first in its own results: retrieve enough for the others too.
    copies = max(Counter(document.key for document in documents).values(), default=0)
    found = retriever.retrieve_batch(queries, (top_n + 1) * copies) if queries and top_n else []
    result: Neighbours = []
    for number, answer in enumerate(found):
        own = documents[number].key
        keys = dict.fromkeys(document.key for document in answer if document.key != own)
        result.append(tuple(first[key] for key in reversed(list(keys)[:top_n])))
    return result or [()] * len(documents)


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
