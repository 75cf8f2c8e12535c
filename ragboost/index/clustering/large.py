"""Cluster a batch that is too large for the quadratic search, in parts.

Contexts are partitioned by their most valuable common documents, each part is clustered, the best
merges of all parts are kept, and the remaining clusters enter the next level. Contexts of different
parts are not compared; docs/lab/ordering.md measures the loss. Knows arrays only.
"""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ragboost.index.clustering import savings
from ragboost.index.clustering.clusters import ClusterTree, Ints, Merges, Rows, number, walk

EXACT_CONTEXTS = 50_000
"""Batches up to this size are clustered whole; the parts of larger ones are half as large."""

_KEEP = 0.3  # share of clusters that enter the next level
_MAX_LEVELS = 12


def cluster(
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    *,
    exact_contexts: int = EXACT_CONTEXTS,
) -> ClusterTree:
    """Cluster contexts by the documents they share: merge the pair whose common documents have the
    most tokens. Deterministic. Larger batches than `exact_contexts` are clustered in parts."""
    rows = number(contexts, tokens)
    return walk(rows, merge(rows, exact_contexts=exact_contexts), rank=np.arange(len(rows.names)))


def merge(rows: Rows, *, exact_contexts: int = EXACT_CONTEXTS) -> Merges:
    """Merge greedily by saved tokens, whole where possible and in parts above `exact_contexts`."""
    shared, tokens = rows.documents, rows.tokens
    forest = _Forest(shared)
    forest.add(forest.tops, _equal(shared))
    if not len(tokens):
        return forest.merges()
    if len(forest.tops) > exact_contexts:
        size = max(1, exact_contexts // 2)
        for _ in range(_MAX_LEVELS):
            if len(forest.tops) <= size or not _merge_level(forest, tokens, size=size):
                break
    if len(forest.tops) <= exact_contexts:
        forest.add(forest.tops, savings.merge(forest.shared(forest.tops), tokens))
    return forest.merges()


def _equal(shared: NDArray[np.int32]) -> Merges:
    """Merge contexts with the same documents first: nothing saves more, and the search would need a
    round for every few of them."""
    filled = np.flatnonzero((shared >= 0).any(axis=1))
    group = np.zeros(0, dtype=np.int64)
    if len(filled):
        _, group = np.unique(np.sort(shared[filled], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)  # numpy 2.0 keeps a second axis
    order = np.argsort(group, kind="stable")
    is_repeat = np.append(False, group[order][1:] == group[order][:-1])[: len(order)]
    at = np.flatnonzero(is_repeat)
    made = len(shared) + np.arange(len(at))
    right = filled[order[at]]
    left = np.where(is_repeat[at - 1], made - 1, filled[order[at - 1]])
    return Merges(left, right, shared[right])


class _Forest:
    """Merges collected part by part; `tops` are the clusters that are not merged yet."""

    def __init__(self, shared: NDArray[np.int32]) -> None:
        self.num_contexts = len(shared)
        self.tops = np.arange(len(shared))
        self._shared = np.concatenate([shared, np.full_like(shared, -1)])
        self._left = np.full(len(shared), -1)
        self._right = np.full(len(shared), -1)
        self._count = len(shared)

    def shared(self, clusters: Ints) -> NDArray[np.int32]:
        rows: NDArray[np.int32] = self._shared[clusters]
        return rows

    def add(self, clusters: Ints, merges: Merges) -> None:
        """Add merges of `clusters`; children come before their parents."""
        made = np.arange(self._count, self._count + len(merges.left))
        names = np.concatenate([clusters, made])
        at = made - self.num_contexts
        self._left[at], self._right[at] = names[merges.left], names[merges.right]
        self._shared[made] = merges.shared
        self._count += len(made)
        is_top = np.zeros(self._count, dtype=bool)
        is_top[self.tops] = is_top[made] = True
        is_top[self._left[at]] = is_top[self._right[at]] = False
        self.tops = np.flatnonzero(is_top)

    def merges(self) -> Merges:
        made = self._count - self.num_contexts
        return Merges(
            self._left[:made], self._right[:made], self._shared[self.num_contexts : self._count]
        )


def _merge_level(forest: _Forest, tokens: Ints, *, size: int) -> bool:
    """Cluster the tops in parts and keep the best merges; return False if there are none."""
    tops = forest.tops
    parts = [tops[part] for part in _parts(forest.shared(tops), tokens, size=size)]
    found = [savings.merge(forest.shared(part), tokens) for part in parts]
    saved = [np.append(tokens, 0)[merges.shared].sum(axis=1) for merges in found]
    ranked = np.sort(np.concatenate(saved))[::-1]
    num_merges = len(tops) - max(size // 2, int(len(tops) * _KEEP))
    # A merge shares no more than those below it, so the merges above a limit are whole subtrees.
    limit = int(ranked[num_merges]) if num_merges < len(ranked) else 1
    if (ranked > limit).sum() > num_merges // 2:
        limit += 1  # leave ties out, unless that would leave too few
    for part, merges, tokens_saved in zip(parts, found, saved, strict=True):
        forest.add(part, _only(merges, tokens_saved >= limit, len(part)))
    return len(forest.tops) < len(tops)


def _only(merges: Merges, keep: NDArray[np.bool_], count: int) -> Merges:
    number = np.concatenate([np.arange(count), count - 1 + np.cumsum(keep)])
    return Merges(number[merges.left[keep]], number[merges.right[keep]], merges.shared[keep])


def _parts(shared: NDArray[np.int32], tokens: Ints, *, size: int) -> list[Ints]:
    """Partition clusters into groups of at most `size` that have much in common.

    Documents are ranked by the tokens they would save: their length times the clusters that hold
    them. Each cluster is grouped by its best document. Groups that are too large are split by their
    other documents, small ones are combined.
    """
    groups: list[Ints] = []
    stack: list[tuple[Ints, tuple[int, ...]]] = [(np.arange(len(shared)), ())]
    while stack:
        group, above = stack.pop()
        if len(group) <= size:
            groups.append(group)
            continue
        best = _best_documents(shared[group], tokens, above=above)
        order = np.argsort(best, kind="stable")
        bounds = np.flatnonzero(np.diff(best[order])) + 1
        for part in reversed(np.split(order, bounds)):
            document = int(best[part[0]])
            if document < 0:  # nothing left in common
                groups.extend(group[part[at : at + size]] for at in range(0, len(part), size))
            else:
                stack.append((group[part], (*above, document)))
    return _packed(groups, size=size)


def _best_documents(
    shared: NDArray[np.int32], tokens: Ints, *, above: tuple[int, ...]
) -> NDArray[np.int32]:
    present = shared[(shared >= 0) & ~np.isin(shared, above)]
    documents, frequency = np.unique(present, return_counts=True)
    value = (frequency - 1) * tokens[documents]
    by_value = np.argsort(-value, kind="stable")[: int((value > 0).sum())]
    rank = np.full(len(tokens) + 1, len(by_value), dtype=np.int64)  # the last one is for padding
    rank[documents[by_value]] = np.arange(len(by_value))
    lowest = rank[shared].min(axis=1, initial=len(by_value))
    best: NDArray[np.int32] = np.append(documents[by_value], -1)[lowest].astype(np.int32)
    return best


def _packed(groups: list[Ints], *, size: int) -> list[Ints]:
    parts: list[Ints] = []
    waiting: list[Ints] = []
    for group in groups:
        if waiting and sum(map(len, waiting)) + len(group) > size:
            parts.append(np.concatenate(waiting))
            waiting = []
        waiting.append(group)
    if waiting:
        parts.append(np.concatenate(waiting))
    return parts
