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
from ragboost.formats.messages import Messages
from ragboost.formats.ragboost_object import RagboostObject

__all__ = [
    "Format",
    "FoundDocuments",
    "TooManyDocumentsError",
    "UnknownShapeError",
    "find_format",
    "make_formats",
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
