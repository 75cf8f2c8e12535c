"""Plan a few waiting requests together, against the current prefix cache (RAGBoost section 5).

Requests are grouped like a batch, but a group must pay off: joining it may cost a request the
cached prefix that it would have had alone. Knows documents as keys.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ragboost.index import ContextIndex
from ragboost.ordering.groups import Documents, Group, Groups, Shared, WaitingContext
from ragboost.ordering.request import OrderPolicy


class NextRequest(NamedTuple):
    position: int  # in the window
    order: tuple[Hashable, ...]  # its documents, in prompt order
    cached_tokens: int  # of them


def plan_next(
    index: ContextIndex,
    contexts: Sequence[Documents],
    tokens: Mapping[Hashable, int],
    *,
    budget_tokens: float,
    policy: OrderPolicy | None = None,
) -> NextRequest:
    """Plan which request to send next; the others are planned again with later ones.

    Two groups A and B with cached prefixes of m(A) and m(B) tokens merge if sharing their
    common documents R first saves more than following their own prefixes:
    tokens(R) + m(R) - m(A) - m(B) > 0, the best pair first. The first request of the group with
    the longest cached prefix is sent if the first request of the window can wait for it, and
    else that one, with its documents in the order that its group can follow. Changes nothing in
    the index: what is planned may never be sent.

    Args:
        contexts: distinct documents of each request, most relevant first; the first request is
            sent if no other may overtake it.
        budget_tokens: uncached tokens that may be sent before the first request.
        policy: orders documents within a group; None: relevance order.
    """
    waiting = [WaitingContext.of(context, tokens) for context in contexts]
    groups = Groups(waiting, Shared.of(waiting), search=index.search)
    groups.merge()
    leaf = groups.longest_cached().first_leaf()
    order, cached_tokens = _order_chain(index, leaf, tokens, policy=policy)
    if leaf is not groups.leaves[0]:
        uncached = sum([tokens[document] for document in order]) - cached_tokens
        if uncached > budget_tokens:
            leaf = groups.leaves[0]
            order, cached_tokens = _order_chain(index, leaf, tokens, policy=policy)
    return NextRequest(leaf.number, tuple(order), cached_tokens)


def _order_chain(
    index: ContextIndex, leaf: Group, tokens: Mapping[Hashable, int], *, policy: OrderPolicy | None
) -> tuple[list[Hashable], int]:
    """Order a request's documents group by group, from the outermost group to the request.

    The documents of an outer group come first, so that all its requests share a prefix. Within
    a group the cached prefix comes first, then the others as the policy says.

    Returns:
        The order, and its cached tokens.
    """
    order: list[Hashable] = []
    cached_tokens = 0
    for group in leaf.chain():
        documents = group.documents
        if group.cached_tokens > cached_tokens:
            cached_tokens = group.cached_tokens
            lengths = [tokens[document] for document in documents]
            prefix = index.search(documents, lengths).documents
            if set(prefix[: len(order)]) == set(order):
                order = list(prefix)
        placed = set(order)
        rest = [document for document in documents if document not in placed]
        if rest:
            order += rest if policy is None else policy.order(rest, tokens, prefix=order)
    return order, index.cached_prefix(order).cached_tokens
