"""Plan a batch: order each context, and the contexts among each other (RAGBoost section 5).

All contexts are known, so the whole cluster tree is built first. Knows documents as keys.
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import NamedTuple

from ragboost.index.clustering import EXACT_CONTEXTS, ClusterTree, cluster


class BatchPlan(NamedTuple):
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
    exact_contexts: int = EXACT_CONTEXTS,
    keep_last: int = 0,
) -> BatchPlan:
    """Order the documents and requests of a batch for the most prefix sharing.

    The release order is a depth-first walk of the cluster tree: all contexts that share a prefix
    are sent before the next prefix begins, so the cache's size hardly matters.

    Args:
        tokens: length of every document, at least 1.
        exact_contexts: larger batches are clustered in parts.
        keep_last: the most relevant documents of each context that take its last places, the best
            one last; they take no part in the clustering.
    """
    free = [context[keep_last:] for context in contexts] if keep_last else contexts
    tree = cluster(free, tokens, exact_contexts=exact_contexts)
    return make_plan(contexts, tree, tree.leaves, keep_last=keep_last)


def make_plan(
    contexts: Sequence[Sequence[Hashable]],
    tree: ClusterTree,
    release: Sequence[int],
    *,
    keep_last: int = 0,
) -> BatchPlan:
    """Return the plan of a cluster tree over all but the first `keep_last` of each context."""
    permutations = []
    for context, prefix in zip(contexts, tree.prefixes, strict=True):
        rest = context[keep_last:]
        num_last = len(context) - len(rest)
        order = _permutation(rest, prefix)
        permutations.append((*(i + num_last for i in order), *range(num_last - 1, -1, -1)))
    return BatchPlan(
        tuple(release), tuple(permutations), tuple(tree.search_paths), tree.saved_tokens
    )


def _permutation(context: Sequence[Hashable], prefix: tuple[Hashable, ...]) -> tuple[int, ...]:
    position: dict[Hashable, int] = {}
    repeats = []
    for i, document in enumerate(context):
        if position.setdefault(document, i) != i:
            repeats.append(i)
    front = [position.pop(document) for document in prefix]
    return (*front, *position.values(), *repeats)


class BatchTurns(NamedTuple):
    """The requests of a batch by their place in a conversation, as indices into the batch."""

    leading: tuple[int, ...]  # requests with no turn before them
    # By request of `leading`, the later turns of its conversation, in turn order.
    later: Mapping[int, tuple[int, ...]]
    # Turns of conversations that began before the batch, in the batch's order.
    continued: tuple[int, ...]

    def release_order(self, leading_order: Sequence[int]) -> tuple[int, ...]:
        """Return the order in which to send the batch.

        Continued conversations come first, while their history is cached; each later turn follows
        its first turn directly, for the same reason.

        `leading_order` are positions in `leading`.
        """
        order = list(self.continued)
        for at in leading_order:
            first = self.leading[at]
            order.append(first)
            order.extend(self.later.get(first, ()))
        return tuple(order)


def group_turns(sessions: Sequence[str | None], continued: Collection[str]) -> BatchTurns:
    """Group a batch's requests by their conversations, which are None for single requests."""
    first: dict[str, int] = {}
    leading, early = [], []
    later: dict[int, list[int]] = {}
    for i, session in enumerate(sessions):
        if session is not None and session in continued:
            early.append(i)
        elif session is not None and session in first:
            later.setdefault(first[session], []).append(i)
        else:
            leading.append(i)
            if session is not None:
                first[session] = i
    turns = {first: tuple(own) for first, own in later.items()}
    return BatchTurns(tuple(leading), turns, tuple(early))
