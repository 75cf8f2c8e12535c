"""De-duplicate whole documents within a request and across turns (RAGBoost section 6).

Documents are equal if their keys are. Does not know sessions: the caller says which documents the
payload contains.
"""

from collections.abc import Container, Hashable, Sequence
from typing import NamedTuple

from ragboost.types import Document


class Unique(NamedTuple):
    """A request's documents without duplicates.

    Attributes:
        documents: each once, in relevance order.
        slots: for each document of the request, its index in `documents`.
    """

    documents: tuple[Document, ...]
    slots: tuple[int, ...]


class Split(NamedTuple):
    """A turn's documents, split by whether the payload contains them already.

    Attributes:
        new: indices of the documents to send, in relevance order.
        carried: indices of the documents that an earlier turn contains, in relevance order.
    """

    new: tuple[int, ...]
    carried: tuple[int, ...]


def unique_documents(documents: Sequence[Document]) -> Unique:
    """Drop repeats of a document."""
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
    """Split a turn's documents into those to send and those in an earlier turn of the payload.

    Args:
        documents: the turn's documents without duplicates.
        carried: keys of the documents that the payload contains already.
    """
    new: list[int] = []
    old: list[int] = []
    for i, document in enumerate(documents):
        (old if document.key in carried else new).append(i)
    return Split(tuple(new), tuple(old))


def distinct_elements(keys: Sequence[str]) -> tuple[Hashable, ...]:
    """Give copies of a document distinct names, as the context index requires.

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
