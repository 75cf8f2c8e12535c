"""The shared nouns: Document, Request, Hint."""

import hashlib
import json
import math
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID

from ragboost.errors import InvalidDocumentError, RequestError, show

DocumentId = str | int | float | bool | None
"""A document's id: any JSON scalar, into which UUIDs and numpy's numbers are converted. None: no
id."""

_MAX_BITS = 1024  # Python does not print integers of more than some thousand digits
_MAX_LABEL = 40
_PLAIN_LABEL = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:\-]{{0,{_MAX_LABEL - 1}}}")
_NO_METADATA: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, init=False)
class Document:
    """One retrieved text.

    Raises:
        InvalidDocumentError: empty or non-string text, an id that is not a JSON scalar, or a score
            that is not finite.
    """

    text: str = field(compare=False)  #: the text that the model reads; not empty
    #: The caller's id, any JSON scalar; None without one.
    id: DocumentId = field(default=None, compare=False)
    title: str | None = field(default=None, compare=False)  #: rendered above the text if given
    #: The retriever's score, finite; higher is more relevant. Not part of the identity.
    score: float | None = field(default=None, compare=False)
    #: Kept unchanged, never shown to the model. Not part of the identity.
    metadata: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    #: Identity within RAGBoost: 32 hex digits, a hash of id, title and text. Documents are equal
    #: if their keys are, that is if the model would read the same bytes: an id with a new text is
    #: another document, and so are the ids 1, 1.0, True and "1".
    key: str = field(init=False, repr=False)

    # A request has dozens of documents; a generated `__init__` takes twice as long.
    def __init__(
        self,
        text: str,
        id: DocumentId = None,  # noqa: A002
        title: str | None = None,
        score: float | None = None,
        metadata: Mapping[str, Any] = _NO_METADATA,
    ) -> None:
        if not isinstance(text, str) or not text or text.isspace():
            raise _invalid("text", "must be a non-empty string", text)
        if title is not None and not isinstance(title, str):
            raise _invalid("title", "must be a string", title)
        if not (id is None or isinstance(id, str | bool) or _is_finite(id, float)):
            id = _json_scalar(id)  # noqa: A001
        if score is not None and not _is_finite(score, Real):
            raise _invalid("score", "must be a finite number", score)
        if metadata is _NO_METADATA:
            metadata = {}
        elif type(metadata) is not dict and not isinstance(metadata, Mapping):
            raise _invalid("metadata", "must be an object", metadata)
        put = object.__setattr__
        put(self, "text", text)
        put(self, "id", id)
        put(self, "title", title)
        put(self, "score", score)
        put(self, "metadata", metadata)
        put(self, "key", document_key(text, id=id, title=title))

    @property
    def label(self) -> str:
        """The name of the document: its id if that is short and plain, else 8 digits of its key.

        Independent of the position, so that a reordered document keeps its bytes. `Context.labels`
        has the labels as prompt and hints show them.
        """
        if self.id is not None:
            name = self.id if isinstance(self.id, str) else json.dumps(self.id)
            is_plain = name.isalnum() and name.isascii() and len(name) <= _MAX_LABEL
            if is_plain or _PLAIN_LABEL.fullmatch(name):
                return name
        return self.key[:8]


def encodable(text: str) -> str:
    """Return a text for a tokenizer: lone surrogates, which none accepts, become `?`."""
    return text.encode("utf-8", "replace").decode()


KEY_OF = attrgetter("key")
"""Of a document, for `map`: requests have dozens."""

_KEY_LENGTH = 32


def named_key(element: Hashable) -> str:
    """Return a document's key from its name in a context index.

    The name is the key, behind the prompt prefix if there is one; that of a copy is a pair of this
    and a number.
    """
    name = element[0] if isinstance(element, tuple) else element
    return str(name)[-_KEY_LENGTH:]


def document_key(text: str, *, id: DocumentId = None, title: str | None = None) -> str:  # noqa: A002
    """Hash id, title and text into a document's identity (32 hex digits, SHA-256 truncated).

    The parts are length-delimited, so distinct triples never concatenate to the same bytes. Lone
    surrogates, which engines accept, are hashed unchanged.
    """
    if id is None and title is None:
        head = f"j:null:-1::{len(text)}:"
        return _key(head + text)
    if id is None:
        kind, name = "j", "null"
    elif isinstance(id, str):
        kind, name = f"s{len(id)}", id
    else:
        kind, name = "j", json.dumps(id)
    head = f"{kind}:{name}:{-1 if title is None else len(title)}:{title or ''}:{len(text)}:"
    return _key(head + text)


def _key(identity: str) -> str:
    digest = hashlib.sha256(identity.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:_KEY_LENGTH]


DocumentLike = Document | Mapping[str, Any] | str
"""Anything that `as_document` accepts."""

_TEXT_NAMES = ("text", "content", "page_content")


def is_blank(value: object) -> bool:
    """Return True for a text, or a mapping with one, that is empty, white space or null: a chunk
    without text, such as the image of a page."""
    if isinstance(value, Mapping):
        name = next(filter(value.__contains__, _TEXT_NAMES), None)
        value = value[name] if name is not None else value
        return value is None or (isinstance(value, str) and not value.strip())
    return isinstance(value, str) and (not value or value.isspace())


def as_document(value: DocumentLike | object, *, where: str = "document") -> Document:
    """Convert a value from a caller to a Document.

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
            problem = f"must be a string or an object with 'text', got {show(value)}"
            raise InvalidDocumentError(problem)
        name = next(filter(value.__contains__, _TEXT_NAMES), None)
        if name is None:
            problem = f"is missing, and so are content and page_content; got {show(list(value))}"
            raise InvalidDocumentError(problem, param="text")
        return Document(
            text=value[name],
            id=value.get("id", value.get("doc_id")),
            title=value.get("title"),
            score=value.get("score"),
            metadata={} if value.get("metadata") is None else value["metadata"],
        )
    except InvalidDocumentError as error:
        param = f"{where}.{error.param}" if error.param else where
        raise InvalidDocumentError(f"{param}: {error}", param=param) from None


def as_documents(values: Sequence[DocumentLike], *, where: str = "documents") -> list[Document]:
    """Convert a list of values from a caller to Documents; see `as_document`.

    Blank ones are left out: one among the chunks of a retriever must not cost the answer.

    Raises:
        InvalidDocumentError: `values` is not a list, or an entry is bad (named by its position).
    """
    if type(values) not in (list, tuple) and (  # isinstance with abstract classes is slow
        isinstance(values, str | bytes | Mapping) or not isinstance(values, Sequence)
    ):
        raise InvalidDocumentError(f"{where} must be a list, got {show(values)}", param=where)
    if set(map(type, values)) == {Document}:
        return list(values)  # type: ignore[arg-type]  # no other types
    return [
        value if type(value) is Document else as_document(value, where=f"{where}[{i}]")
        for i, value in enumerate(values)
        if type(value) is Document or not is_blank(value)
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """A question with the documents retrieved for it, most relevant first.

    Raises:
        RequestError: `query` is not a string, or `session` is not a non-empty string.
        InvalidDocumentError: a document is invalid.
    """

    query: str  #: the user's question
    documents: tuple[Document, ...]  #: in relevance order; converted by `as_documents`
    id: str | None = None  #: the caller's name for the request (`custom_id` in batch files)
    session: str | None = None  #: the conversation it belongs to, or None
    #: Names the text before the first document; only requests with the same one share prefixes.
    prompt_prefix: str = ""

    def __post_init__(self) -> None:
        check_question(self.query, session=self.session)
        object.__setattr__(self, "documents", tuple(as_documents(self.documents)))


def check_question(query: object, *, session: object) -> None:
    """Check what a `Request` consists of beside its documents."""
    if not isinstance(query, str):
        raise RequestError(f"query must be a string, got {show(query)}", param="query")
    if session is not None and (not isinstance(session, str) or not session):
        raise RequestError(
            f"session must be a non-empty string, got {show(session)}", param="session"
        )


@dataclass(frozen=True, slots=True)
class Hint:
    """A sentence that tells the model what reordering or de-duplication has removed."""

    #: `order` gives the relevance order (paper section 5.3), `location` the earlier turn that
    #: contains a document (section 6).
    kind: Literal["order", "location"]
    text: str  #: the rendered sentence
    labels: tuple[str, ...]  #: labels of the documents it names, as the prompt shows them


def _json_scalar(value: object) -> DocumentId:
    """Return the id that a UUID or a number of numpy is in JSON."""
    if isinstance(value, UUID):
        return str(value)
    if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        value = value.item()  # type: ignore[attr-defined]
    if isinstance(value, bool) or _is_finite(value, float):
        return value  # type: ignore[return-value]  # a bool, an int or a float
    raise _invalid("id", "must be a JSON scalar, finite and not huge", value)


def _is_finite(value: object, kind: type[float] | type[Real]) -> bool:
    if isinstance(value, int):
        return not isinstance(value, bool) and value.bit_length() <= _MAX_BITS
    return isinstance(value, kind) and math.isfinite(float(value))


def _invalid(param: str, problem: str, value: object) -> InvalidDocumentError:
    return InvalidDocumentError(f"{param} {problem}, got {show(value)}", param=param)
