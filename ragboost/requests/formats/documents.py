"""The documents of a body: what finds them and writes them back, and which are known by text.

Knows decoded JSON. Does not know bytes, HTTP or any shape.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

from ragboost.booster.context import Context
from ragboost.errors import RagBoostError
from ragboost.requests.formats.numbering import Numbering
from ragboost.requests.wires.body import Path
from ragboost.types import KEY_OF, Document, DocumentLike, as_documents
from ragboost.util.bounded_map import Generations

_DOCUMENT_BYTES = 500  # size of an entry beside its text


class UnknownShapeError(RagBoostError):
    """The body holds documents in an unsupported shape; it must be forwarded unchanged."""


class LeftAloneError(UnknownShapeError):
    """There is nothing in the body that could be boosted; it is forwarded as it came.

    `frame` is the list's that was seen, `num_documents` the number of its documents, if known.
    """

    def __init__(self, message: str, *, frame: str = "", num_documents: int = 0) -> None:
        super().__init__(message)
        self.frame = frame
        self.num_documents = num_documents


class NothingToDoError(LeftAloneError):
    """The body holds documents, but none in front and none that an earlier message contains."""

    def __init__(self, num: int) -> None:
        super().__init__(
            f"{num} documents behind the first messages, none of them in an earlier message",
            num_documents=num,
        )


class AmbiguousDocumentsError(LeftAloneError):
    """The body holds a list of documents whose boundaries are not certain."""

    def __init__(self, frame: str, problem: str) -> None:
        super().__init__(f"documents in the frame {frame!r} are left alone: {problem}", frame=frame)


class OrderedDocumentsError(AmbiguousDocumentsError):
    """The body holds a list whose order is, or may be, what it says."""


class NumberedDocumentsError(LeftAloneError):
    """The body holds a list whose numbers answers may cite, and these are not mapped."""

    def __init__(self, frame: str, num: int) -> None:
        super().__init__(
            "answers may cite the documents' numbers, which are mapped by the proxy alone, with "
            "formats.numbers = map",
            frame=frame,
            num_documents=num,
        )


class UnmarkedDocumentsError(LeftAloneError):
    """The body seems to hold documents, but not where each one ends."""


class TooManyDocumentsError(UnknownShapeError):
    """The body holds more documents than `formats.max_documents`."""

    def __init__(self, num: int, limit: int) -> None:
        super().__init__(f"{num} documents; the limit is {limit} (formats.max_documents)")


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    query: str
    documents: tuple[Document, ...]  # in relevance order
    message: int | None  # index of the message to rewrite; None if another field is
    path: Path = ()  # of the text or list that holds the first document, inside a message
    start: int = 0  # offset of the first document in it
    num_repeated: int = 0  # in later messages, replaced by references to earlier text
    num_later: int = 0  # in later messages, with the repeated ones
    frame: str = ""  # how they stand in a text
    layout: object = None  # state that the shape keeps from `extract` for `replace`
    blank: tuple[int, ...] = ()  # positions of those without text, which are left out
    numbering: Numbering | None = None  # of a list whose numbers are mapped

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(map(KEY_OF, self.documents))


def order_of(documents: Sequence[Document], sent: Sequence[Document]) -> list[int]:
    """Return the position among `documents` of each one sent; of equal ones the first."""
    keys = list(map(KEY_OF, documents))
    places = dict(zip(reversed(keys), range(len(keys) - 1, -1, -1), strict=True))
    if len(sent) <= len(places):
        return list(map(places.__getitem__, map(KEY_OF, sent)))
    copies: dict[str, list[int]] = defaultdict(list)
    for i in range(len(documents) - 1, -1, -1):
        copies[documents[i].key].append(i)
    return [copies[document.key].pop() for document in sent]


class Format(Protocol):
    """One shape of documents in a body.

    Bodies are never changed in place: `replace` returns a new one that shares every unchanged
    object with the old one, so that the caller can keep the original bytes of these.
    """

    name: str
    # The documents become part of the question's message and so of the payload of every later
    # turn; otherwise they belong to this request alone.
    in_message: bool
    # The documents are part of messages that the client resends with every later turn: `replace`
    # depends on the body and the context's order alone, so that the same history always yields
    # the same bytes.
    in_place: bool
    is_ours: bool  # a malformed one is the caller's error; other shapes pass unchanged

    def extract(
        self, body: Mapping[str, Any], *, tenant: str = "", learns: bool = True
    ) -> FoundDocuments | None:
        """Find documents; None if the body has none of this shape.

        Args:
            tenant: whose requests teach how documents stand in a text.
            learns: from this body, too.

        Raises:
            RequestError: malformed, in a shape of RAGBoost's own.
            UnknownShapeError: unsupported, in another shape.
        """

    def replace(
        self, body: Mapping[str, Any], found: FoundDocuments, context: Context
    ) -> dict[str, Any]:
        """Return a body that carries `context` in place of `found`."""

    def note(self, body: Mapping[str, Any], found: FoundDocuments, context: Context) -> str:
        """Return what `replace` tells the model about documents that were moved or left out; empty
        if nothing."""


def find_format(
    formats: tuple[Format, ...], body: Mapping[str, Any], *, tenant: str = "", learns: bool = True
) -> tuple[Format, FoundDocuments] | None:
    """Return the documents of a body and the shape they have, or None if there are none.

    Raises:
        RequestError: the `ragboost` object is malformed.
        UnknownShapeError: the body holds documents in an unsupported shape.
    """
    for shape in formats:
        if (found := shape.extract(body, tenant=tenant, learns=learns)) is not None:
            return shape, found
    return None


class DocumentPool:
    """The documents of the latest texts, so that a text is not hashed again. Thread-safe.

    Exact: found by the whole text.
    """

    def __init__(self, *, max_bytes: int = 32 << 20) -> None:
        self._max_newer_bytes = max_bytes // 2
        self._newer_bytes = 0
        self._known: Generations[str, Document] = Generations()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._known)

    def of(self, text: str) -> Document:
        """Return the document that is this text.

        Raises:
            InvalidDocumentError: the text is blank.
        """
        document = self._known.newer.get(text)
        if document is None:
            document = self._known.older.get(text) or Document(text)
            self._keep(document)
        return document

    def of_all(self, texts: Sequence[str]) -> tuple[Document, ...]:
        """Return the documents that are these texts; see `of`."""
        known = tuple(map(self._known.newer.get, texts))
        return known if all(known) else tuple(map(self.of, texts))  # type: ignore[return-value]

    def all_of(self, values: Sequence[DocumentLike], *, where: str) -> tuple[Document, ...]:
        """Convert a list of values from a caller; see `as_documents`."""
        if type(values) is list:
            values = [
                self.of(value) if type(value) is str and value and not value.isspace() else value
                for value in values
            ]
        return tuple(as_documents(values, where=where))

    def _keep(self, document: Document) -> None:
        text = document.text
        size = text.__sizeof__() + _DOCUMENT_BYTES
        if size > self._max_newer_bytes:
            return
        with self._lock:
            if self._newer_bytes + size > self._max_newer_bytes:
                self._known.turn()
                self._newer_bytes = 0
            if self._known.newer.setdefault(text, document) is document:
                self._newer_bytes += size
