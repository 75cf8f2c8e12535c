"""Compose what one request's payload carries: documents, labels, positions and hints.

Pure: the caller says what stands in the payload already and in which order to send the rest.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

from ragboost.booster.invariants import check_context
from ragboost.config import Settings
from ragboost.hints import label_documents, location_hints, order_hint
from ragboost.types import Document, Hint


class Retrieved(NamedTuple):
    """A request's documents with duplicates told apart and lengths counted.

    Attributes:
        query: the question.
        documents: what the caller gave, in relevance order.
        unique: the same without duplicates.
        slots: for each of `documents`, its index in `unique`.
        elements: for each of `unique`, its name in the context index; all differ.
        tokens: for each of `unique`, its length.
        preamble: names the text before the first document.
    """

    query: str
    documents: tuple[Document, ...]
    unique: tuple[Document, ...]
    slots: tuple[int, ...]
    elements: tuple[Hashable, ...]
    tokens: Sequence[int]
    preamble: str = ""


class CarriedDocuments(NamedTuple):
    """What the session was sent, labels by document key.

    Attributes:
        known: everything that is remembered of the session.
        carried: the part that stands in this payload and may be referred to.
        is_empty: no earlier turn stands in this payload.
        is_complete: no document stands in this payload that has been forgotten.
    """

    known: Mapping[str, str]
    carried: Mapping[str, str]
    is_empty: bool
    is_complete: bool


class Composed(NamedTuple):
    """Documents in prompt order with their labels; positions and hints as in Context."""

    documents: tuple[Document, ...]
    labels: tuple[str, ...]
    positions: tuple[int, ...]
    hints: tuple[Hint, ...]


def compose(
    retrieved: Retrieved, sent: Sequence[int], *, history: CarriedDocuments, settings: Settings
) -> Composed:
    """Compose the payload and check it.

    Args:
        retrieved: the request.
        sent: indices into `retrieved.unique` in prompt order; the history carries the others.
        history: what the session was sent.
        settings: of labels, hints and de-duplication.

    Raises:
        ContextIndexError: an invariant does not hold.
    """
    documents = tuple([retrieved.unique[i] for i in sent])
    labels = label_documents(
        documents,
        template=settings.hints.label_template,
        known=history.known,
        is_complete=history.is_complete,
    )
    places = {i: place for place, i in enumerate(sent)}
    positions = tuple([places.get(slot, -1) for slot in retrieved.slots])
    hints: tuple[Hint, ...] = ()
    if len(sent) < len(retrieved.unique):
        referred = (
            history.carried[document.key]
            for i, document in enumerate(retrieved.unique)
            if i not in places and document.key in history.carried
        )
        hints = location_hints(referred, template=settings.hints.location_template)
    by_relevance = sorted(sent)
    if settings.hints.order and by_relevance != list(sent):
        relevance = [labels[places[i]] for i in by_relevance]
        hints += (order_hint(relevance, template=settings.hints.order_template),)
    composed = Composed(documents, labels, positions, hints)
    check_context(
        composed,
        retrieved.documents,
        history=history,
        allow_copies=not settings.dedup.enabled,
    )
    return composed
