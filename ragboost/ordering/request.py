"""Order the documents of one request (RAGBoost section 5.1).

The longest cached prefix comes first, the remaining documents behind it. Reads the context index
and changes nothing: the caller inserts what it sends.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex


class OrderPolicy:
    """An order of the documents that no cached prefix determines: here that of relevance."""

    hint_tokens = 6.0
    """Price of an order hint per document of the request; 0 if none is sent. Measured 4.6 to 8."""

    def add(self, documents: Iterable[Hashable]) -> None:
        """Learn from the documents of a request that is sent."""

    def order(
        self,
        documents: Sequence[Hashable],
        tokens: Mapping[Hashable, int],
        *,
        prefix: Sequence[Hashable] = (),
    ) -> list[Hashable]:
        """Sort the documents behind a prefix."""
        return list(documents)


class Order(NamedTuple):
    """A request's documents in the order in which they are, or might be, sent."""

    permutation: tuple[int, ...]  # positions in the relevance order
    documents: tuple[Hashable, ...]
    tokens: tuple[int, ...]  # lengths of `documents`
    cached_tokens: int  # leading tokens that the cache holds
    unmoved_tokens: int | None = None  # those in the relevance order, where they were measured

    @classmethod
    def of(
        cls,
        documents: Sequence[Hashable],
        tokens: Sequence[int],
        permutation: Sequence[int],
        *,
        cached_tokens: int = 0,
        unmoved_tokens: int | None = None,
    ) -> "Order":
        """Apply a permutation to documents in their relevance order; it may leave some out."""
        sent = tuple(map(documents.__getitem__, permutation))
        lengths = tuple(map(tokens.__getitem__, permutation))
        return cls(tuple(permutation), sent, lengths, cached_tokens, unmoved_tokens)

    def fits(self, documents: Sequence[Hashable]) -> bool:
        """Return True if this orders exactly these documents, given in relevance order."""
        num = len(self.permutation)
        return len(documents) == num and self.documents == tuple(
            map(documents.__getitem__, self.permutation)
        )


def order_documents(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    *,
    settings: OrderingSettings,
    policy: OrderPolicy | None = None,
    is_reusing: bool = False,
) -> Order:
    """Order a request's documents so that they extend the longest cached prefix.

    The last places go to the `settings.num_kept` most relevant documents, the best one last. The
    others keep their relevance order if another one saves fewer than `settings.min_saved_tokens`
    more. `documents` are distinct, most relevant first; without a `policy` those behind the cached
    prefix keep that order. `is_reusing`: the engine reuses chunks.
    """
    keep = min(settings.num_kept(is_reusing=is_reusing), len(documents)) if settings.enabled else 0
    unmoved = _measured(index, documents, tokens, _by_relevance(len(documents), keep))
    if not settings.enabled or len(documents) < 2:
        return unmoved
    free, lengths = documents[keep:], tokens[keep:]
    match = index.search(free, lengths)
    tail: Sequence[Hashable] = free
    if match.documents:
        matched = set(match.documents)
        tail = [document for document in free if document not in matched]
    if policy is not None:
        tail = policy.order(tail, dict(zip(free, lengths, strict=True)), prefix=match.documents)
    position = {document: i for i, document in enumerate(documents)}
    permutation = (
        *[position[document] for document in match.documents],
        *[position[document] for document in tail],
        *range(keep - 1, -1, -1),
    )
    if keep:  # the kept ones may be cached behind the others
        order = _measured(index, documents, tokens, permutation)
    else:
        cached, plain = match.cached_tokens, unmoved.cached_tokens
        order = Order.of(documents, tokens, permutation, cached_tokens=cached, unmoved_tokens=plain)
    if order.cached_tokens - unmoved.cached_tokens < settings.min_saved_tokens:
        return unmoved
    return order


def order_exact_first(
    permutation: Sequence[int], num_exact: int, *, keep_last: int
) -> tuple[int, ...]:
    """Keep the order of so many leading documents; the others, which leave no prefix behind them,
    return to the relevance order."""
    rest = set(permutation[num_exact:])
    by_relevance = _by_relevance(len(permutation), min(keep_last, len(permutation)))
    return (*permutation[:num_exact], *[i for i in by_relevance if i in rest])


def _by_relevance(num: int, keep: int) -> tuple[int, ...]:
    return (*range(keep, num), *range(keep - 1, -1, -1))


def _measured(
    index: ContextIndex,
    documents: Sequence[Hashable],
    tokens: Sequence[int],
    permutation: tuple[int, ...],
) -> Order:
    cached = index.cached_prefix(tuple(map(documents.__getitem__, permutation))).cached_tokens
    return Order.of(documents, tokens, permutation, cached_tokens=cached)
