"""Keep the documents that were made of a text alone, so that the same text is not hashed again.

Exact: found by the whole text, not by a digest of it. Does not know who sent the text: a document
depends on nothing else.
"""

from collections.abc import Sequence
from threading import Lock

from ragboost.types import Document, DocumentLike, as_documents

_DOCUMENT_BYTES = 500  # size of an entry beside its text


class KnownDocuments:
    """The documents of the latest texts. Thread-safe.

    Holds two generations: a text that is used moves to the newer one, and when that has half of the
    bytes, the older one is dropped.

    Args:
        max_bytes: of texts and documents together.
    """

    def __init__(self, *, max_bytes: int = 32 * 1024 * 1024) -> None:
        self._max_new_bytes = max_bytes // 2
        self._new: dict[str, Document] = {}
        self._old: dict[str, Document] = {}
        self._new_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._new) + sum(text not in self._new for text in self._old)

    def of(self, text: str) -> Document:
        """Return the document that is this text.

        Raises:
            InvalidDocumentError: the text is blank.
        """
        document = self._new.get(text)
        if document is None:
            document = self._old.get(text) or Document(text)
            self._keep(document)
        return document

    def all_of(self, values: Sequence[DocumentLike], *, where: str) -> tuple[Document, ...]:
        """Convert a list of values from a caller; see `as_documents`."""
        if type(values) is not list:
            return tuple(as_documents(values, where=where))
        found = [self._find(value) if type(value) is str else value for value in values]
        documents = tuple(as_documents(found, where=where))
        for value, document in zip(values, documents, strict=True):
            if document.text is value:  # a text that was not known
                self._keep(document)
        return documents

    def _find(self, text: str) -> DocumentLike:
        document = self._new.get(text)
        if document is None and (document := self._old.get(text)) is not None:
            self._keep(document)
        return text if document is None else document

    def _keep(self, document: Document) -> None:
        text = document.text
        size = text.__sizeof__() + _DOCUMENT_BYTES
        if size > self._max_new_bytes:
            return
        with self._lock:
            if self._new_bytes + size > self._max_new_bytes:
                self._old, self._new, self._new_bytes = self._new, {}, 0
            if self._new.setdefault(text, document) is document:
                self._new_bytes += size
