"""De-duplicate the documents of a request (RAGBoost section 6).

Documents are equal if their keys are. Does not know sessions.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from ragboost.types import Document


class Unique(NamedTuple):
    """A request's documents without duplicates."""

    documents: tuple[Document, ...]  # each once, in relevance order
    slots: tuple[int, ...]  # for each document of the request, its index in `documents`


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
