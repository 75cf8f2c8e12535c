"""Plan a batch: order each context, and the contexts among each other (RAGBoost section 5).

All contexts are known, so the whole cluster tree is built first. Knows documents as keys.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ragboost.index.clustering import EXACT_CONTEXTS, KeepImproving, Linkage, cluster


class BatchPlan(NamedTuple):
    """The order in which to send a batch."""

    release_order: tuple[int, ...]  # positions of the contexts, in the order in which to send them
    # For each context, by position, the positions of its documents in prompt order. Repeats of a
    # document come after all others.
    permutations: tuple[tuple[int, ...], ...]
    # For each context, by position, its path in the cluster tree.
    search_paths: tuple[tuple[int, ...], ...]
    saved_tokens: int  # tokens that an unbounded prefix cache saves


def plan_batch(
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    *,
    linkage: Linkage = "savings",
    alpha: float = 0.001,
    exact_contexts: int = EXACT_CONTEXTS,
    keep_last: int = 0,
    keep_improving: KeepImproving | None = None,
) -> BatchPlan:
    """Order the documents and requests of a batch for the most prefix sharing.

    With `savings` the release order is a depth-first walk of the cluster tree: all contexts that
    share a prefix are sent before the next prefix begins, so the cache's size hardly matters. With
    `distance` it is the paper's (section 5.2).

    Args:
        tokens: length of every document, at least 1.
        alpha: weight of positions in the paper's distance (Eq. 1).
        exact_contexts: with `savings`, larger batches are clustered in parts.
        keep_last: the most relevant documents of each context that take its last places, the best
            one last; they take no part in the clustering.
    """
    free = [context[keep_last:] for context in contexts] if keep_last else contexts
    tree = cluster(
        free,
        tokens,
        linkage=linkage,
        alpha=alpha,
        exact_contexts=exact_contexts,
        keep_improving=keep_improving,
    )
    release = tree.leaves if linkage == "savings" else release_order(tree.search_paths)
    permutations = []
    for context, rest, prefix in zip(contexts, free, tree.prefixes, strict=True):
        num_last = len(context) - len(rest)
        order = _permutation(rest, prefix)
        permutations.append((*(i + num_last for i in order), *range(num_last - 1, -1, -1)))
    return BatchPlan(
        tuple(release), tuple(permutations), tuple(tree.search_paths), tree.saved_tokens
    )


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


def _permutation(context: Sequence[Hashable], prefix: tuple[Hashable, ...]) -> tuple[int, ...]:
    position: dict[Hashable, int] = {}
    repeats = []
    for i, document in enumerate(context):
        if position.setdefault(document, i) != i:
            repeats.append(i)
    front = [position.pop(document) for document in prefix]
    return (*front, *position.values(), *repeats)
