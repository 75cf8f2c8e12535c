"""De-duplicate whole documents inside a request and against earlier turns (RAGBoost section 6).

Documents are the same if their keys are. Does not know sessions: the caller says what stands where.
"""

from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from ragboost.types import Document


class Unique(NamedTuple):
    """A request's documents without duplicates.

    Attributes:
        documents: each once, in relevance order; the most relevant of equals stays.
        slots: for each document of the request, its index in `documents`.
    """

    documents: tuple[Document, ...]
    slots: tuple[int, ...]


class Split(NamedTuple):
    """A turn's documents, told apart by what the payload already carries.

    Attributes:
        new: indices of documents to send, in relevance order.
        carried: indices of documents that an earlier turn carries, in relevance order.
    """

    new: tuple[int, ...]
    carried: tuple[int, ...]


def unique_documents(documents: Sequence[Document]) -> Unique:
    """Drop documents that stand in the list more than once."""
    slots: dict[str, int] = {}
    places = tuple([slots.setdefault(document.key, len(slots)) for document in documents])
    if len(slots) == len(documents):
        return Unique(tuple(documents), places)
    first: list[Document] = []
    for document, place in zip(documents, places, strict=True):
        if place == len(first):
            first.append(document)
    return Unique(tuple(first), places)


def split_carried(documents: Sequence[Document], carried: Container[str]) -> Split:
    """Tell documents to send from those that an earlier turn of the payload carries.

    Args:
        documents: a turn's documents without duplicates.
        carried: keys of the documents that stand in the payload already.
    """
    new: list[int] = []
    old: list[int] = []
    for i, document in enumerate(documents):
        (old if document.key in carried else new).append(i)
    return Split(tuple(new), tuple(old))


def distinct_elements(keys: Sequence[str]) -> tuple[Hashable, ...]:
    """Name the copies of a document apart, for the context index wants distinct elements.

    The first copy is named by its key.
    """
    if len(set(keys)) == len(keys):
        return tuple(keys)
    seen: dict[str, int] = {}
    elements: list[Hashable] = []
    for key in keys:
        copy = seen[key] = seen.get(key, -1) + 1
        elements.append((key, copy) if copy else key)
    return tuple(elements)
