"""The order of documents inside one request (RAGBoost section 5.1).

Puts the longest cached prefix first and the rest behind it. Reads the context index and changes
nothing: the caller inserts what it sends.
"""

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ragboost.index import ContextIndex
from ragboost.ordering.popularity import RecentContexts

if TYPE_CHECKING:
    from ragboost.config import OrderingSettings


class Order(NamedTuple):
    """A new order for a request's documents.

    Attributes:
        permutation: position in the relevance order of each document of the new order.
        num_matched: how many documents at the start the cache holds, the last perhaps in part.
        cached_tokens: resident tokens of these.
    """

    permutation: tuple[int, ...]
    num_matched: int
    cached_tokens: int


def order_documents(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    settings: "OrderingSettings",
    recent: RecentContexts | None = None,
) -> Order:
    """Order a request's documents so that they extend the longest cached prefix.

    The last `settings.keep_last` places go to the most relevant documents, the best one last. The
    relevance order stays where a new order saves fewer than `settings.min_saved_tokens` more.

    Args:
        index: what the backend's prefix cache holds.
        documents: distinct documents, most relevant first.
        tokens: their lengths.
        recent: what earlier requests had, for the `popularity` tail; None: relevance order.
    """
    keep = min(settings.keep_last, len(documents)) if settings.enabled else 0
    unmoved = _unmoved(index, documents, tokens)
    if not settings.enabled or len(documents) < 2:
        return unmoved
    free, lengths = documents[keep:], tokens[keep:]
    match = index.search(free, lengths)
    tail: Sequence[Hashable] = free
    if match.documents:
        matched = set(match.documents)
        tail = [document for document in free if document not in matched]
    if settings.tail == "popularity" and recent is not None:
        known = dict(zip(free, lengths, strict=True))
        tail = recent.order(tail, known, prefix=match.documents)
    position = {document: i for i, document in enumerate(documents)}
    permutation = (
        *(position[document] for document in match.documents),
        *(position[document] for document in tail),
        *range(keep - 1, -1, -1),
    )
    num_matched, cached_tokens = len(match.documents), match.cached_tokens
    if keep:  # the kept ones may be cached behind the others
        order = [documents[i] for i in permutation]
        num_matched, cached_tokens = index.cached_prefix(order, [tokens[i] for i in permutation])
    if cached_tokens - unmoved.cached_tokens < settings.min_saved_tokens:
        return unmoved
    return Order(permutation, num_matched, cached_tokens)


def _unmoved(index: ContextIndex, documents: Sequence[Hashable], tokens: Sequence[int]) -> Order:
    """The relevance order, with what the cache holds of it as it stands."""
    matched, cached = index.cached_prefix(documents, tokens)
    return Order(tuple(range(len(documents))), matched, cached)
