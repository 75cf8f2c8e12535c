"""Plan the documents of waiting requests against a context index, in the terms of the Booster.

Decides in which order documents and requests are sent. Does not know sessions, payloads or HTTP.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.booster.compose import Retrieved
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import RecentContexts, WindowPlan, plan_batch, plan_next, plan_window


class Planned(NamedTuple):
    """The order that `Booster.plan_window` found for a request, to be passed to `Booster.boost`.

    Attributes:
        permutation: position in the relevance order of each distinct document, in prompt order.
        elements: names of these documents in the context index, in prompt order.
        tokens: their lengths, in prompt order.
        cached_tokens: tokens of them that the prefix cache holds when the request is computed.
        is_inserted: planning has inserted them into the context index.
    """

    permutation: tuple[int, ...]
    elements: tuple[Hashable, ...]
    tokens: tuple[int, ...]
    cached_tokens: int
    is_inserted: bool = True

    @classmethod
    def of(
        cls,
        retrieved: Retrieved,
        permutation: tuple[int, ...],
        cached_tokens: int,
        *,
        is_inserted: bool = True,
    ) -> "Planned":
        """Apply a permutation to a request's documents."""
        elements = tuple([retrieved.elements[i] for i in permutation])
        tokens = tuple([retrieved.tokens[i] for i in permutation])
        return cls(permutation, elements, tokens, cached_tokens, is_inserted)

    def fits(self, elements: Sequence[Hashable]) -> bool:
        """Return True if this orders exactly these documents, given in relevance order."""
        return len(elements) == len(self.permutation) and self.elements == tuple(
            [elements[i] for i in self.permutation]
        )


class Window(NamedTuple):
    """A plan for a few waiting requests.

    Attributes:
        release_order: positions of the requests, in the order in which to send them.
        planned: by position, the order of each request's documents, for `Booster.boost`.
    """

    release_order: tuple[int, ...]
    planned: tuple[Planned, ...]


def plan_together(
    index: ContextIndex,
    retrieved: Sequence[Retrieved],
    *,
    settings: OrderingSettings,
    recent: RecentContexts | None,
) -> Window:
    """Order the requests of a window and their documents, and insert them into the index."""
    keep = settings.keep_last
    window = plan_window(
        index, [r.elements[keep:] for r in retrieved], _lengths(retrieved), recent=recent
    )
    planned = _planned(window, retrieved, keep=keep)
    return Window(window.release_order, tuple(planned[i] for i in range(len(retrieved))))


def plan_first(
    index: ContextIndex,
    retrieved: Sequence[Retrieved],
    *,
    settings: OrderingSettings,
    recent: RecentContexts | None,
    budget_tokens: float,
) -> tuple[int, Planned]:
    """Return the position of the request to send next, and the order of its documents.

    The arguments are those of `ordering.plan_next`. Changes nothing.
    """
    keep = settings.keep_last
    window = plan_next(
        index,
        [r.elements[keep:] for r in retrieved],
        _lengths(retrieved),
        recent=recent,
        budget_tokens=budget_tokens,
    )
    at, planned = next(iter(_planned(window, retrieved, keep=keep).items()))
    return at, planned._replace(is_inserted=False)


def _planned(
    window: WindowPlan, retrieved: Sequence[Retrieved], *, keep: int
) -> dict[int, Planned]:
    planned: dict[int, Planned] = {}
    for at, order, cached in zip(*window, strict=True):
        elements = retrieved[at].elements
        position = {element: i for i, element in enumerate(elements)}
        last = range(min(keep, len(elements)) - 1, -1, -1)
        permutation = (*(position[element] for element in order), *last)
        planned[at] = Planned.of(retrieved[at], permutation, cached)
    return planned


def plan_offline(
    leading: Sequence[Retrieved], *, settings: OrderingSettings
) -> tuple[Sequence[tuple[int, ...]], Sequence[int]]:
    """Plan a batch without an index.

    Returns:
        The permutation of each request's documents, and the release order of the requests.
    """
    if not settings.enabled or not leading:
        return [tuple(range(len(each.elements))) for each in leading], range(len(leading))
    plan = plan_batch(
        [each.elements for each in leading],
        _lengths(leading),
        linkage=settings.linkage,
        alpha=settings.alpha,
        keep_last=settings.keep_last,
    )
    return plan.permutations, plan.release_order


def _lengths(retrieved: Sequence[Retrieved]) -> dict[Hashable, int]:
    return {e: length for r in retrieved for e, length in zip(r.elements, r.tokens, strict=True)}
