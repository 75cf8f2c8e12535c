"""Plan a batch: order inside each context and release order between them (RAGBoost section 5).

All contexts are known, so the whole cluster tree is built first. Knows documents as keys.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ragboost.index.clustering import EXACT_CONTEXTS, Linkage, cluster
from ragboost.ordering.release import release_order


class BatchPlan(NamedTuple):
    """How to send a batch.

    Attributes:
        release_order: positions of the contexts, in the order in which to send them.
        permutations: for each context, by position, the positions of its documents in prompt
            order. A document that a context repeats keeps its first place; repeats stand last.
        search_paths: for each context, by position, its path in the cluster tree.
        saved_tokens: what an unbounded prefix cache saves.
    """

    release_order: tuple[int, ...]
    permutations: tuple[tuple[int, ...], ...]
    search_paths: tuple[tuple[int, ...], ...]
    saved_tokens: int


def plan_batch(
    contexts: Sequence[Sequence[Hashable]],
    tokens: Mapping[Hashable, int],
    *,
    linkage: Linkage = "savings",
    alpha: float = 0.001,
    exact_contexts: int = EXACT_CONTEXTS,
) -> BatchPlan:
    """Order documents and requests of a batch for the most prefix sharing.

    With `savings` the release order is a depth-first walk of the cluster tree, so that whatever
    shares a prefix is sent before the next prefix begins, and the cache's size hardly matters.
    With `distance` it is the paper's (section 5.2).

    Args:
        contexts: documents of each request, most relevant first.
        tokens: length of every document, at least 1.
        linkage: see `ragboost.index.clustering.cluster`.
        alpha: weight of positions in the paper's distance (Eq. 1).
        exact_contexts: with `savings`, larger batches are clustered in parts.

    Raises:
        RequestError: too many contexts for linkage `distance`.
    """
    tree = cluster(contexts, tokens, linkage=linkage, alpha=alpha, exact_contexts=exact_contexts)
    release = tree.leaves if linkage == "savings" else release_order(tree.search_paths)
    return BatchPlan(
        tuple(release),
        tuple(
            _permutation(context, prefix)
            for context, prefix in zip(contexts, tree.prefixes, strict=True)
        ),
        tuple(tree.search_paths),
        tree.saved_tokens,
    )


def _permutation(context: Sequence[Hashable], prefix: tuple[Hashable, ...]) -> tuple[int, ...]:
    position: dict[Hashable, int] = {}
    repeats = []
    for i, document in enumerate(context):
        if position.setdefault(document, i) != i:
            repeats.append(i)
    front = [position.pop(document) for document in prefix]
    return (*front, *position.values(), *repeats)


def with_last(permutation: Sequence[int], num_last: int) -> tuple[int, ...]:
    """Put the `num_last` most relevant documents behind a permutation of the others, the best last,
    as `order_documents` does."""
    return (*(i + num_last for i in permutation), *range(num_last - 1, -1, -1))
