"""Find documents in a request body, put the new order back; one file per wire shape."""

from ragboost.config import HintSettings
from ragboost.formats.base import Format, Found, UnknownShapeError
from ragboost.formats.documents_field import DocumentsField
from ragboost.formats.ragboost_object import RagboostObject

__all__ = ["Format", "Found", "UnknownShapeError", "find_format", "make_formats"]


def make_formats(hints: HintSettings) -> tuple[Format, ...]:
    """Every shape we know; the first one that finds documents wins."""
    return (RagboostObject(), DocumentsField(hints))


def find_format(
    formats: tuple[Format, ...], body: dict[str, object]
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
