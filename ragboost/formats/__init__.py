"""Find documents in a request body and write the new order back; one file per wire shape."""

from ragboost.config import Settings
from ragboost.formats.documents import (
    DocumentPool,
    Format,
    FoundDocuments,
    TooManyDocumentsError,
    UnknownShapeError,
    find_format,
)
from ragboost.formats.documents_field import DocumentsField
from ragboost.formats.learnt_boundaries import BoundaryLearner
from ragboost.formats.messages import Messages
from ragboost.formats.ragboost_object import RagboostObject
from ragboost.formats.unmarked import UnmarkedDocuments, UnmarkedDocumentsError

__all__ = [
    "Format",
    "FoundDocuments",
    "TooManyDocumentsError",
    "UnknownShapeError",
    "UnmarkedDocuments",
    "UnmarkedDocumentsError",
    "find_format",
    "make_formats",
    "make_unmarked",
]


def make_formats(settings: Settings) -> tuple[Format, ...]:
    """Return the known shapes in the order in which they are tried; the first match wins.

    Documents that the caller names explicitly come before documents found in texts.
    """
    hints, limit = settings.hints, settings.formats.max_documents
    pool = DocumentPool()
    return (
        RagboostObject(max_documents=limit, pool=pool),
        DocumentsField(hints, max_documents=limit),
        DocumentsField(hints, max_documents=limit, parent="chat_template_kwargs"),
        Messages(settings, pool=pool),
    )


def make_unmarked(settings: Settings, *, is_single: bool) -> UnmarkedDocuments:
    """Return the shape for bodies without any other.

    Args:
        is_single: no other worker learns, which would cut the later turns of a conversation
            differently.
    """
    learner = BoundaryLearner() if settings.formats.learn_boundaries and is_single else None
    return UnmarkedDocuments(settings, pool=DocumentPool(), learner=learner)
