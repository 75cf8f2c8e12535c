"""Order the documents of one request (RAGBoost section 5.1).

The longest cached prefix comes first, the remaining documents behind it. Reads the context index
and changes nothing: the caller inserts what it sends.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering.popularity import RecentContexts


class Order(NamedTuple):
    """A new order of a request's documents."""

    # Position in the relevance order of each document of the new order.
    permutation: tuple[int, ...]
    num_matched: int  # number of leading documents that the cache holds, the last perhaps in part
    cached_tokens: int  # number of their resident tokens


def order_documents(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    settings: OrderingSettings,
    recent: RecentContexts | None = None,
) -> Order:
    """Order a request's documents so that they extend the longest cached prefix.

    The last `settings.keep_last` places go to the most relevant documents, the best one last. The
    others keep their relevance order if another one saves fewer than `settings.min_saved_tokens`
    more.

    Args:
        recent: the documents of earlier requests, for the `popularity` tail; None: relevance order.
    """
    keep = min(settings.keep_last, len(documents)) if settings.enabled else 0
    last = tuple(range(keep - 1, -1, -1))
    unmoved = _measured(index, documents, (*range(keep, len(documents)), *last))
    if not settings.enabled or len(documents) < 2:
        return unmoved
    free, lengths = documents[keep:], tokens[keep:]
    match = index.search(free, lengths)
    tail: Sequence[Hashable] = free
    if match.documents:
        matched = set(match.documents)
        tail = [document for document in free if document not in matched]
    if settings.tail == "popularity" and recent is not None:
        lengths_of = dict(zip(free, lengths, strict=True))
        tail = recent.order(tail, lengths_of, prefix=match.documents)
    position = {document: i for i, document in enumerate(documents)}
    permutation = (
        *[position[document] for document in match.documents],
        *[position[document] for document in tail],
        *last,
    )
    order = Order(permutation, len(match.documents), match.cached_tokens)
    if keep:  # the kept ones may be cached behind the others
        order = _measured(index, documents, permutation)
    if order.cached_tokens - unmoved.cached_tokens < settings.min_saved_tokens:
        return unmoved
    return order


def _measured(
    index: ContextIndex, documents: Sequence[Hashable], permutation: tuple[int, ...]
) -> Order:
    return Order(permutation, *index.cached_prefix([documents[i] for i in permutation]))
