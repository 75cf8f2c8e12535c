"""The interface of a wire shape: find the documents in a body, and write them back.

Knows decoded JSON. Does not know bytes or HTTP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ragboost.context import Context
from ragboost.errors import RagBoostError
from ragboost.types import Document


class UnknownShapeError(RagBoostError):
    """The body holds documents in an unsupported shape; it must be forwarded unchanged."""


class TooManyDocumentsError(UnknownShapeError):
    """The body holds more documents than `formats.max_documents`."""

    def __init__(self, num: int, limit: int) -> None:
        super().__init__(f"{num} documents; the limit is {limit} (formats.max_documents)")


@dataclass(frozen=True, slots=True)
class Found:
    """The documents of one request.

    Attributes:
        query: the question.
        documents: in relevance order.
        message: index of the message to rewrite; None if another field is rewritten.
        path: keys and indices of the text or list that holds the first document, if that is part
            of a message already; empty for other shapes.
        start: offset of the first document in it.
        num_repeated: documents in later messages that are replaced by a reference to earlier text
            of the payload.
        num_later: documents in later messages, including the repeated ones.
        layout: state that the shape keeps from `extract` for `replace`.
    """

    query: str
    documents: tuple[Document, ...]
    message: int | None
    path: tuple[str | int, ...] = ()
    start: int = 0
    num_repeated: int = 0
    num_later: int = 0
    layout: object = None

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the documents, in relevance order."""
        return tuple([document.key for document in self.documents])

    @property
    def seed(self) -> bytes:
        """Identifies documents above the messages, for the links of a conversation's history."""
        return "\n".join(self.keys).encode()


class Format(Protocol):
    """One wire shape.

    Bodies are never changed in place: `replace` returns a new one that shares every unchanged
    object with the old one, so that the caller can keep the original bytes of these.

    Attributes:
        name: shown in messages and metrics.
        in_message: the documents become part of the question's message and so of the payload of
            every later turn; otherwise they belong to this request alone.
        in_place: the documents are already part of messages that the client resends with every
            later turn. `replace` depends on the body and the context's order alone, so that the
            same history always yields the same bytes.
        is_ours: the shape is RAGBoost's own, so that a malformed one is the caller's error; other
            shapes pass unchanged where they are malformed.
    """

    name: str
    in_message: bool
    in_place: bool
    is_ours: bool

    def extract(self, body: Mapping[str, Any]) -> Found | None:
        """Find documents; None if the body has none of this shape.

        Raises:
            RequestError: malformed, in a shape of RAGBoost's own.
            UnknownShapeError: unsupported, in another shape.
        """

    def replace(self, body: Mapping[str, Any], found: Found, context: Context) -> dict[str, Any]:
        """Return a body that carries `context` in place of `found`."""
