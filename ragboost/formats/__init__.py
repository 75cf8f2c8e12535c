"""Find documents in a request body, put the new order back; one file per wire shape."""

from collections.abc import Mapping
from typing import Any

from ragboost.config import Settings
from ragboost.formats.base import Format, Found, UnknownShapeError
from ragboost.formats.documents_field import DocumentsField
from ragboost.formats.messages import Messages
from ragboost.formats.ragboost_object import RagboostObject

__all__ = ["Format", "Found", "UnknownShapeError", "find_format", "make_formats"]


def make_formats(settings: Settings) -> tuple[Format, ...]:
    """Every shape we know, in the order in which they are tried; the first one that finds documents
    wins: what the caller says outright, before what we find in texts."""
    return (
        RagboostObject(),
        DocumentsField(settings.hints),
        DocumentsField(settings.hints, parent="chat_template_kwargs"),
        Messages(settings),
    )


def find_format(
    formats: tuple[Format, ...], body: Mapping[str, Any]
) -> tuple[Format, Found] | None:
    """Return the documents of a body and the shape they have, or None if there are none.

    Raises:
        RequestError: the `ragboost` object is malformed.
        UnknownShapeError: there are documents in a shape that we do not understand.
    """
    for shape in formats:
        if (found := shape.extract(body)) is not None:
            return shape, found
    return None
