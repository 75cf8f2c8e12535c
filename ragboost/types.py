"""The shared nouns: Document, Request, Hint, Context, Plan.

Knows what they are made of. Does not know how a context is ordered, rendered or sent.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ragboost.errors import InvalidDocumentError

DocumentId = str | int | float | bool | None
"""A document's id as the caller gave it: any JSON scalar. None: the content is the id."""

_PLAIN_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:\-]{0,39}")


@dataclass(frozen=True, slots=True)
class Document:
    """One retrieved text.

    Attributes:
        text: the text that the model reads; not empty.
        id: the caller's id, any JSON scalar; None if it has none.
        title: shown above the text where given.
        score: the retriever's score, finite; higher is more relevant. Not part of the identity.
        metadata: kept as it is, never shown to the model. Not part of the identity.
        key: identity inside RAGBoost, 32 hex digits of id, title and text together. Documents
            are the same only if the model would read the same bytes: an id with a new text is
            another document.

    Raises:
        InvalidDocumentError: empty or non-string text, an id that is no JSON scalar, a NaN score.
    """

    text: str
    id: DocumentId = None
    title: str | None = None
    score: float | None = field(default=None, compare=False)
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    key: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise InvalidDocumentError(
                f"text must be a non-empty string, got {_show(self.text)}", param="text"
            )
        if self.id is not None and not isinstance(self.id, str | int | float | bool):
            raise InvalidDocumentError(
                f"id must be a JSON scalar, got {_show(self.id)}", param="id"
            )
        for name in ("id", "score"):
            value = getattr(self, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidDocumentError(f"{name} must be finite, got {value}", param=name)
        if self.score is not None and (
            isinstance(self.score, bool) or not isinstance(self.score, int | float)
        ):
            raise InvalidDocumentError(
                f"score must be a number, got {_show(self.score)}", param="score"
            )
        if self.title is not None and not isinstance(self.title, str):
            raise InvalidDocumentError(
                f"title must be a string, got {_show(self.title)}", param="title"
            )
        object.__setattr__(self, "key", document_key(self.text, id=self.id, title=self.title))

    @property
    def label(self) -> str:
        """Name of the document in the prompt and in hints: its id where that is short and plain,
        else the first 8 digits of its key. Never depends on the position, so that a reordered
        document keeps its bytes."""
        if self.id is not None:
            name = self.id if isinstance(self.id, str) else json.dumps(self.id)
            if _PLAIN_LABEL.fullmatch(name):
                return name
        return self.key[:8]


def document_key(text: str, *, id: DocumentId = None, title: str | None = None) -> str:  # noqa: A002
    """Hash id, title and text into a document's identity (32 hex digits, SHA-256 truncated).

    The parts are length-delimited, so no two triples collide by concatenation; lone surrogates,
    which engines accept, are hashed as they are.
    """
    head = json.dumps([id, title, len(text)]).encode()
    digest = hashlib.sha256(head)
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def as_document(
    value: "Document | Mapping[str, Any] | str", *, where: str = "document"
) -> Document:
    """Turn what a caller passed into a Document.

    Args:
        value: a Document, a text, or a mapping with `text` (or `content`, `page_content`) and
            optionally `id` (or `doc_id`), `title`, `score`, `metadata`.
        where: path of the value in the caller's input, for the error message.

    Raises:
        InvalidDocumentError: with `param` set to the offending field below `where`.
    """
    if isinstance(value, Document):
        return value
    try:
        if isinstance(value, str):
            return Document(value)
        if not isinstance(value, Mapping):
            raise InvalidDocumentError(
                f"must be a string or an object with 'text', got {_show(value)}"
            )
        text = next(
            (value[name] for name in ("text", "content", "page_content") if name in value), None
        )
        return Document(
            text=text,  # type: ignore[arg-type]  # checked by Document, with the field's name
            id=value.get("id", value.get("doc_id")),
            title=value.get("title"),
            score=value.get("score"),
            metadata=value.get("metadata") or {},
        )
    except InvalidDocumentError as error:
        param = f"{where}.{error.param}" if error.param else where
        raise InvalidDocumentError(f"{param}: {error}", param=param) from None


def as_documents(
    values: Sequence["Document | Mapping[str, Any] | str"], *, where: str = "documents"
) -> list[Document]:
    """Turn a list of what callers pass into Documents; see `as_document`.

    Raises:
        InvalidDocumentError: `values` is no list, or an entry is bad (named by its position).
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence):
        raise InvalidDocumentError(f"{where} must be a list, got {_show(values)}", param=where)
    return [as_document(value, where=f"{where}[{i}]") for i, value in enumerate(values)]


@dataclass(frozen=True, slots=True)
class Request:
    """A question with the documents retrieved for it, most relevant first.

    Attributes:
        query: the user's question.
        documents: in relevance order.
        id: the caller's name for the request (`custom_id` in batch files).
        session: the conversation it belongs to; None if it stands alone.
    """

    query: str
    documents: tuple[Document, ...]
    id: str | None = None
    session: str | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """A sentence that tells the model what reordering or de-duplication took away.

    Attributes:
        kind: `order` (relevance order, paper 5.3) or `location` (where a document stands, 6).
        text: the rendered sentence.
        labels: the labels of the documents it speaks of.
    """

    kind: Literal["order", "location"]
    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """The ordered documents of one request, ready to be rendered.

    Every retrieved document either stands in `documents` or is named by a location hint.

    Attributes:
        query: the user's question.
        documents: what this payload carries, in prompt order, without duplicates.
        retrieved: what the caller gave, in relevance order.
        positions: for each of `retrieved`, its index in `documents`; -1 where a location hint
            stands for it because an earlier turn carries it.
        hints: location hints, then the order hint; empty if nothing moved and nothing was dropped.
        search_path: child positions from the root of the context index (paper 4.1).
        predicted_cached_tokens: tokens of the leading documents that the prefix cache should hold.
    """

    query: str
    documents: tuple[Document, ...]
    retrieved: tuple[Document, ...]
    positions: tuple[int, ...]
    hints: tuple[Hint, ...] = ()
    search_path: tuple[int, ...] = ()
    predicted_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A batch in release order.

    Attributes:
        contexts: one per request, in the order in which to send them.
        order: for each of `contexts`, the position of its request in the caller's list.
    """

    contexts: tuple[Context, ...]
    order: tuple[int, ...]


def _show(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
