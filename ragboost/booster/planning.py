"""Plan the documents of waiting requests against a context index, in the terms of the Booster.

Decides in which order documents and requests are sent. Does not know sessions, payloads or HTTP.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.booster.compose import Retrieved
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import OrderPolicy, RequestWindow, order_documents, plan_batch

_MAX_WAITING_NODES = 10_000


class Planned(NamedTuple):
    """The order that `Booster.plan_next` found for a request, to be passed to `Booster.boost`."""

    permutation: tuple[int, ...]  # positions of the distinct documents in the relevance order
    elements: tuple[Hashable, ...]  # names of these documents in the context index
    tokens: tuple[int, ...]  # their lengths
    cached_tokens: int  # tokens of them that the prefix cache holds

    @classmethod
    def of(
        cls, retrieved: Retrieved, permutation: tuple[int, ...], cached_tokens: int
    ) -> "Planned":
        """Apply a permutation to a request's documents."""
        elements = tuple([retrieved.elements[i] for i in permutation])
        tokens = tuple([retrieved.tokens[i] for i in permutation])
        return cls(permutation, elements, tokens, cached_tokens)

    def fits(self, elements: Sequence[Hashable]) -> bool:
        """Return True if this orders exactly these documents, given in relevance order."""
        return len(elements) == len(self.permutation) and self.elements == tuple(
            [elements[i] for i in self.permutation]
        )


class LivePlanner:
    """Plans the requests that wait for the prefix cache of a context index."""

    def __init__(
        self, index: ContextIndex, settings: OrderingSettings, policy: OrderPolicy
    ) -> None:
        self._index = index
        self._window = RequestWindow(index)
        self._in_order: ContextIndex | None = None  # if all that wait were sent as they came
        self._settings = settings
        self._policy = policy

    def clear(self) -> None:
        """Forget what the last plan found out: nobody waits."""
        self._window.clear()

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
        self._in_order.insert(*retrieved.in_order(order.permutation))
        return order.cached_tokens

    def plan_first(
        self, retrieved: Sequence[Retrieved], *, budget_tokens: float
    ) -> tuple[int, Planned]:
        """Return the position of the request to send next, and the order of its documents.

        The arguments are those of `RequestWindow.plan_next`. Changes nothing in the index.
        """
        keep = self._settings.keep_last
        at, order, cached_tokens = self._window.plan_next(
            [r.elements[keep:] for r in retrieved],
            _lengths(retrieved),
            policy=self._policy,
            budget_tokens=budget_tokens,
        )
        elements = retrieved[at].elements
        position = {element: i for i, element in enumerate(elements)}
        last = range(min(keep, len(elements)) - 1, -1, -1)
        permutation = (*(position[element] for element in order), *last)
        return at, Planned.of(retrieved[at], permutation, cached_tokens)


def plan_offline(
    leading: Sequence[Retrieved], *, settings: OrderingSettings
) -> tuple[Sequence[tuple[int, ...]], Sequence[int]]:
    """Plan a batch without an index.

    Returns:
        The permutation of each request's documents, and the release order of the requests.
    """
    if not settings.enabled or not leading:
        unmoved = [tuple(range(len(retrieved.elements))) for retrieved in leading]
        return unmoved, range(len(leading))
    plan = plan_batch(
        [retrieved.elements for retrieved in leading],
        _lengths(leading),
        keep_last=settings.keep_last,
    )
    return plan.permutations, plan.release_order


def _lengths(retrieved: Sequence[Retrieved]) -> dict[Hashable, int]:
    return {e: length for r in retrieved for e, length in zip(r.elements, r.tokens, strict=True)}
