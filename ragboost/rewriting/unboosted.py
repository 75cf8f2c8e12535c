"""Contexts whose order is given: as the client sent the documents, or as an earlier turn had them.

Does not know the context index or bodies.
"""

from collections.abc import Sequence

from ragboost.context import Context
from ragboost.formats import Found
from ragboost.hints import label_documents
from ragboost.types import Document


def as_given(found: Found, *, label_template: str) -> Context:
    """All documents, in their order, without hints."""
    documents = found.documents
    return _context(found, documents, range(len(documents)), label_template=label_template)


def in_order(found: Found, order: Sequence[str], *, label_template: str) -> Context:
    """The documents in the order in which an earlier turn had them, given by their keys."""
    by_key = {document.key: document for document in reversed(found.documents)}
    documents = tuple(by_key[key] for key in order)
    places = {key: at for at, key in enumerate(order)}
    positions = [places[document.key] for document in found.documents]
    return _context(found, documents, positions, label_template=label_template)


def _context(
    found: Found,
    documents: tuple[Document, ...],
    positions: Sequence[int],
    *,
    label_template: str,
) -> Context:
    return Context(
        query=found.query,
        documents=documents,
        retrieved=found.documents,
        positions=tuple(positions),
        labels=label_documents(documents, template=label_template, known={}),
    )
