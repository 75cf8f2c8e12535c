"""Find documents in a request body and write the new order back; one file per wire shape."""

from collections.abc import Mapping
from typing import Any

from ragboost.config import Settings
from ragboost.formats.base import Format, Found, TooManyDocumentsError, UnknownShapeError
from ragboost.formats.documents_field import DocumentsField
from ragboost.formats.known_documents import KnownDocuments
from ragboost.formats.messages import Messages
from ragboost.formats.ragboost_object import RagboostObject

__all__ = [
    "Format",
    "Found",
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
    known = KnownDocuments()
    return (
        RagboostObject(max_documents=limit, known=known),
        DocumentsField(hints, max_documents=limit),
        DocumentsField(hints, max_documents=limit, parent="chat_template_kwargs"),
        Messages(settings, known=known),
    )


def find_format(
    formats: tuple[Format, ...], body: Mapping[str, Any]
) -> tuple[Format, Found] | None:
    """Return the documents of a body and the shape they have, or None if there are none.

    Raises:
        RequestError: the `ragboost` object is malformed.
        UnknownShapeError: the body holds documents in an unsupported shape.
    """
    for shape in formats:
        if (found := shape.extract(body)) is not None:
            return shape, found
    return None
