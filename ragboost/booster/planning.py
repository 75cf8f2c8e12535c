"""Plan the documents of waiting requests against a context index, in the terms of the Booster.

Says in which order documents and requests go. Does not know sessions, payloads or HTTP.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.booster.compose import Retrieved
from ragboost.config import OrderingSettings
from ragboost.index import ContextIndex
from ragboost.ordering import RecentContexts, order_documents, plan_batch, plan_window
from ragboost.ordering.batch import with_last


class Planned(NamedTuple):
    """The order that `Booster.plan_window` found for a request, to be given to `boost`.

    Attributes:
        permutation: position in the relevance order of each distinct document, in prompt order.
        elements: names of these documents in the context index, in prompt order.
        tokens: their lengths, in prompt order.
        cached_tokens: what the prefix cache holds of them when the request's turn comes.
    """

    permutation: tuple[int, ...]
    elements: tuple[Hashable, ...]
    tokens: tuple[int, ...]
    cached_tokens: int

    def fits(self, elements: Sequence[Hashable]) -> bool:
        """Whether this is an order of these documents, given in relevance order."""
        return len(elements) == len(self.permutation) and self.elements == tuple(
            elements[i] for i in self.permutation
        )


class Window(NamedTuple):
    """A plan for a few waiting requests.

    Attributes:
        release_order: positions of the requests, in the order in which to send them.
        planned: by position, for `boost`.
    """

    release_order: tuple[int, ...]
    planned: tuple[Planned, ...]


def plan_alone(
    index: ContextIndex,
    retrieved: Retrieved,
    *,
    settings: OrderingSettings,
    recent: RecentContexts | None,
) -> Planned:
    """Order one request's documents as if it came alone; changes nothing."""
    order = order_documents(
        index, retrieved.elements, retrieved.tokens, settings=settings, recent=recent
    )
    return _planned(retrieved, order.permutation, order.cached_tokens)


def plan_together(
    index: ContextIndex,
    retrieved: Sequence[Retrieved],
    *,
    settings: OrderingSettings,
    recent: RecentContexts,
) -> Window:
    """Order the requests of a window and their documents; the index holds them afterwards."""
    keep = settings.keep_last
    window = plan_window(
        index,
        [r.elements[keep:] for r in retrieved],
        {e: length for r in retrieved for e, length in zip(r.elements, r.tokens, strict=True)},
        recent=recent,
    )
    planned: dict[int, Planned] = {}
    for at, order, cached in zip(*window, strict=True):
        elements = retrieved[at].elements
        position = {element: i for i, element in enumerate(elements)}
        last = range(min(keep, len(elements)) - 1, -1, -1)
        permutation = (*(position[element] for element in order), *last)
        planned[at] = _planned(retrieved[at], permutation, cached)
    return Window(window.release_order, tuple(planned[i] for i in range(len(retrieved))))


def plan_offline(
    leading: Sequence[Retrieved], *, settings: OrderingSettings
) -> tuple[Sequence[tuple[int, ...]], Sequence[int]]:
    """Plan a batch without an index: the prompt order of each context, and in which order to send
    them all."""
    if not settings.enabled or not leading:
        return [tuple(range(len(each.elements))) for each in leading], range(len(leading))
    plan = plan_batch(
        [each.elements[settings.keep_last :] for each in leading],
        {e: length for r in leading for e, length in zip(r.elements, r.tokens, strict=True)},
        linkage=settings.linkage,
        alpha=settings.alpha,
    )
    return [
        with_last(permutation, min(settings.keep_last, len(each.elements)))
        for permutation, each in zip(plan.permutations, leading, strict=True)
    ], plan.release_order


def _planned(retrieved: Retrieved, permutation: tuple[int, ...], cached_tokens: int) -> Planned:
    elements = tuple(retrieved.elements[i] for i in permutation)
    tokens = tuple(retrieved.tokens[i] for i in permutation)
    return Planned(permutation, elements, tokens, cached_tokens)
