"""What must hold of every context before it is sent; checked on each request.

A violation is our bug, never the caller's: the proxy then forwards the original request.
"""

from collections.abc import Mapping, Sequence

from ragboost.errors import ContextIndexError
from ragboost.types import Document, Hint


def check_context(
    retrieved: Sequence[Document],
    documents: Sequence[Document],
    *,
    positions: Sequence[int],
    labels: Sequence[str],
    hints: Sequence[Hint],
    known: Mapping[str, str],
    history: Mapping[str, str],
    allow_copies: bool = False,
) -> None:
    """Check that nothing is lost, doubled or mixed.

    Args:
        retrieved, documents, positions, labels, hints: as in Context.
        known: label by key of everything the session was sent.
        history: the part of it that stands in this payload; nothing else may be referred to.
        allow_copies: a document may stand in the context more than once.

    Raises:
        ContextIndexError: names the document and what is wrong with it.
    """
    if len(positions) != len(retrieved) or len(labels) != len(documents):
        raise ContextIndexError(
            f"{len(retrieved)} retrieved documents have {len(positions)} positions, "
            f"{len(documents)} documents have {len(labels)} labels"
        )
    if set(positions) - {-1} != set(range(len(documents))):
        raise ContextIndexError("a document stands in the context that was not retrieved")
    named = {label for hint in hints if hint.kind == "location" for label in hint.labels}
    _check_nothing_lost(retrieved, documents, positions, named=named, history=history)
    if not allow_copies and len({document.key for document in documents}) != len(documents):
        raise ContextIndexError("a document stands in the context twice")
    _check_nothing_mixed(documents, labels, named=named, known=known, history=history)


def _check_nothing_lost(
    retrieved: Sequence[Document],
    documents: Sequence[Document],
    positions: Sequence[int],
    *,
    named: set[str],
    history: Mapping[str, str],
) -> None:
    for document, position in zip(retrieved, positions, strict=True):
        if position >= 0:
            if documents[position].key != document.key:
                raise ContextIndexError(f"document {document.key} is not at {position}")
        elif history.get(document.key) not in named:
            raise ContextIndexError(f"document {document.key} is lost: no hint refers to it")


def _check_nothing_mixed(
    documents: Sequence[Document],
    labels: Sequence[str],
    *,
    named: set[str],
    known: Mapping[str, str],
    history: Mapping[str, str],
) -> None:
    """A label means one document, and hints point only into this payload's history."""
    if not named <= set(history.values()):
        raise ContextIndexError("a location hint refers to a document outside this payload")
    if any(known.get(key) != label for key, label in history.items()):
        raise ContextIndexError("a document of the history does not belong to this session")
    owners = {label: key for key, label in known.items()}
    for document, label in zip(documents, labels, strict=True):
        if owners.setdefault(label, document.key) != document.key:
            raise ContextIndexError(f"label {label} means two documents")
