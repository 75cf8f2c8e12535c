"""What a wire shape does: find documents in a body, and put them back.

Knows decoded JSON, not bytes or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ragboost.context import Context
from ragboost.errors import RagBoostError
from ragboost.types import Document


class UnknownShapeError(RagBoostError):
    """There are documents, but in a shape that we do not understand: leave the body alone."""


@dataclass(frozen=True, slots=True)
class Found:
    """The documents of one request.

    Attributes:
        query: the question.
        documents: in relevance order.
        message: index of the message that is written anew for them; None: another field is.
        path: keys and indices of the text or list that holds the first document, for documents in
            place; the text before it is part of the prefix that requests can share.
        start: offset of the first document in it.
        num_repeated: documents behind these, in other messages, for which a reference to earlier
            text of the payload is going to stand.
        num_later: documents behind these, including the repeated ones.
        layout: what the shape remembers for `replace`.
    """

    query: str
    documents: tuple[Document, ...]
    message: int | None
    path: tuple[str | int, ...] = ()
    start: int = 0
    num_repeated: int = 0
    num_later: int = 0
    layout: object = None


class Format(Protocol):
    """One wire shape.

    Bodies are never changed in place: `replace` returns a new one and shares what stays the same,
    by identity, so that the caller can keep the original bytes of it.

    Attributes:
        name: of the shape, for messages and metrics.
        in_message: the documents become part of the question's message, so that they stand in the
            payload of every later turn. Otherwise they belong to this request only.
        in_place: the documents stand in messages already and are resent by the client with every
            later turn. `replace` depends on the body and the context's order alone, so that the
            same history becomes the same bytes.
        is_ours: a malformed shape is the caller's error. Otherwise it is somebody else's field,
            which passes unchanged.
    """

    name: str
    in_message: bool
    in_place: bool
    is_ours: bool

    def extract(self, body: Mapping[str, Any]) -> Found | None:
        """Find documents; None if the body has none of this shape.

        Raises:
            RequestError: malformed, in a shape of ours.
            UnknownShapeError: not understood, in a shape of others.
        """

    def replace(self, body: Mapping[str, Any], found: Found, context: Context) -> dict[str, Any]:
        """Return a body that carries `context` in place of `found`."""
