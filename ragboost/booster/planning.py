"""Plan the documents of waiting requests against a context index, in the terms of the Booster.

Decides in which order documents and requests are sent. Does not know sessions, payloads or HTTP.
"""

import re
from collections.abc import Callable, Hashable, Sequence

from ragboost.booster.compose import Retrieved
from ragboost.booster.tokens import num_bytes
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import Order, OrderPolicy, order_documents, plan_batch, plan_next
from ragboost.types import Document

_MAX_WAITING_NODES = 10_000
_NOTE_TOKENS = re.compile(r"[^\W\d_]+|\S|(?<=\S) (?=\d)")


class LivePlanner:
    """Plans the requests that wait for the prefix cache of a context index."""

    def __init__(
        self, index: ContextIndex, settings: OrderingSettings, policy: OrderPolicy
    ) -> None:
        self._index = index
        self._in_order: ContextIndex | None = None  # if all that wait were sent as they came
        self._settings = settings
        self._policy = policy

    def arrive(self, retrieved: Retrieved, *, is_first: bool) -> int:
        """Let a request wait; return the tokens that it would find cached if nobody were overtaken.

        That is what the cache holds now, or what those before it would leave there.

        Args:
            is_first: nobody waits yet.
        """
        if self._in_order is None or is_first:
            self._in_order = ContextIndex(
                capacity_tokens=self._index.capacity_tokens, max_nodes=_MAX_WAITING_NODES
            )
        elements, tokens = retrieved.elements, retrieved.tokens
        order = max(
            (
                order_documents(
                    index, elements, tokens, settings=self._settings, policy=self._policy
                )
                for index in (self._index, self._in_order)
            ),
            key=lambda order: order.cached_tokens,
        )
        self._in_order.insert(order.documents, order.tokens)
        return order.cached_tokens

    def plan_first(
        self, retrieved: Sequence[Retrieved], *, budget_tokens: float
    ) -> tuple[int, Order]:
        """Return the position of the request to send next, and the order of its documents.

        The arguments are those of `ordering.plan_next`. Changes nothing in the index.
        """
        keep = self._settings.num_kept()
        at, order, cached_tokens = plan_next(
            self._index,
            [r.elements[keep:] for r in retrieved],
            _lengths(retrieved),
            policy=self._policy,
            budget_tokens=budget_tokens,
        )
        elements = retrieved[at].elements
        position = {element: i for i, element in enumerate(elements)}
        last = range(min(keep, len(elements)) - 1, -1, -1)
        permutation = (*(position[element] for element in order), *last)
        return at, retrieved[at].in_order(permutation, cached_tokens=cached_tokens)


def plan_offline(
    leading: Sequence[Retrieved], *, settings: OrderingSettings
) -> tuple[Sequence[Order], Sequence[int]]:
    """Plan a batch without an index; return an order for each request, and the release order."""
    if not settings.enabled or not leading:
        unmoved = [each.in_order(range(len(each.elements))) for each in leading]
        return unmoved, range(len(leading))
    plan = plan_batch(
        [retrieved.elements for retrieved in leading],
        _lengths(leading),
        keep_last=settings.num_kept(),
    )
    orders = map(Retrieved.in_order, leading, plan.permutations)
    return list(orders), plan.release_order


def order_that_pays(
    retrieved: Retrieved,
    order: Order,
    *,
    index: ContextIndex,
    note: Callable[[Sequence[Document]], str],
    share: float,
    count: Callable[[str], int],
) -> Order:
    """Return an order, or the caller's if this one saves fewer tokens than its note has.

    An order for which nothing is cached stays: waiting requests profit from it.

    Args:
        note: returns what the caller writes beside documents in an order.
        share: of the cached tokens that an order saves.
    """
    unmoved = tuple(range(len(order.permutation)))
    if order.permutation == unmoved or not order.cached_tokens:
        return order
    text = note([retrieved.unique[i] for i in order.permutation])
    if (plain := order.unmoved_tokens) is None:
        plain = index.cached_prefix(retrieved.elements).cached_tokens
    saved = share * (order.cached_tokens - plain)
    # No token is less than a byte, and bytes are counted many times faster.
    if not text or saved > num_bytes(text) or saved > _note_tokens(text, count):
        return order
    return retrieved.in_order(unmoved, cached_tokens=plain)


def _note_tokens(text: str, count: Callable[[str], int]) -> int:
    """Return the tokens of a note, or an upper estimate: it is mostly digits and punctuation, which
    are shorter than an average token."""
    return max(count(text), len(_NOTE_TOKENS.findall(text)))


def _lengths(retrieved: Sequence[Retrieved]) -> dict[Hashable, int]:
    return {e: length for r in retrieved for e, length in zip(r.elements, r.tokens, strict=True)}
