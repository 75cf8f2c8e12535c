"""What must hold of every context before it is sent; checked on each request.

A violation is our bug, never the caller's: the proxy then forwards the original request.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ragboost.errors import ContextIndexError
from ragboost.types import Document

if TYPE_CHECKING:
    from ragboost.booster.compose import CarriedDocuments, Composed


def check_context(
    composed: "Composed",
    retrieved: Sequence[Document],
    *,
    history: "CarriedDocuments",
    allow_copies: bool = False,
) -> None:
    """Check that nothing is lost, doubled or mixed.

    Args:
        composed: the documents to send, their labels, positions and hints.
        retrieved: what the caller gave.
        history: what the session was sent, and what of it stands in this payload.
        allow_copies: a document may stand in the context more than once.

    Raises:
        ContextIndexError: names the document and what is wrong with it.
    """
    documents, labels, positions, hints = composed
    if len(positions) != len(retrieved) or len(labels) != len(documents):
        raise ContextIndexError(
            f"{len(retrieved)} retrieved documents have {len(positions)} positions, "
            f"{len(documents)} documents have {len(labels)} labels"
        )
    if set(positions) - {-1} != set(range(len(documents))):
        raise ContextIndexError("a document stands in the context that was not retrieved")
    named = {label for hint in hints if hint.kind == "location" for label in hint.labels}
    for document, position in zip(retrieved, positions, strict=True):
        if position >= 0:
            if documents[position].key != document.key:
                raise ContextIndexError(f"document {document.key} is not at {position}")
        elif history.carried.get(document.key) not in named:
            raise ContextIndexError(f"document {document.key} is lost: no hint refers to it")
    keys = {document.key for document in documents}
    if not allow_copies and len(keys) != len(documents):
        raise ContextIndexError("a document stands in the context twice")
    if not named <= set(history.carried.values()):
        raise ContextIndexError("a location hint refers to a document outside this payload")
    _check_labels(documents, labels, known=history.known)


def _check_labels(
    documents: Sequence[Document], labels: Sequence[str], *, known: Mapping[str, str]
) -> None:
    """A label means one document, here and in the conversation."""
    owners = {label: key for key, label in known.items()}
    for document, label in zip(documents, labels, strict=True):
        if owners.setdefault(label, document.key) != document.key:
            raise ContextIndexError(f"label {label} means two documents")
