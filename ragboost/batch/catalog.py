"""What the first pass keeps of a batch file: where each request stands, and numbers for documents.

Holds no texts, so that memory grows by some hundred bytes a request and not with the file.
"""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from ragboost.batch.lines import BatchLine
from ragboost.tokens import TokenCounter
from ragboost.types import Document


class CatalogDocument(NamedTuple):
    """A request.

    Attributes:
        line: its line number in the input, from 1.
        offset: where that line begins, in bytes.
        head: number of what stands before the documents; -1: there is nothing to plan.
        documents: numbers of its documents, in relevance order.
    """

    line: int
    offset: int
    head: int
    documents: "array[int]"


class DocumentCatalog:
    """The requests of a file, in its order.

    Args:
        tokens: counts each document once.
        dedup: a document that stands in a request twice is sent once.
    """

    def __init__(self, tokens: TokenCounter, *, dedup: bool) -> None:
        self.entries: list[CatalogDocument] = []
        self.tokens = array("q")  # by document number
        self._counter = tokens
        self._dedup = dedup
        self._documents: dict[bytes, int] = {}
        self._heads: dict[str, int] = {}

    def add(self, line: BatchLine, *, number: int, offset: int) -> None:
        """Add the request of line `number`."""
        head = -1
        if line.documents and line.is_boost_wanted:
            head = self._heads.setdefault(line.head, len(self._heads))
        documents = array("q", [self._number(document) for document in line.documents])
        self.entries.append(CatalogDocument(number, offset, head, documents))

    def sent(self, entry: CatalogDocument) -> Sequence[int]:
        """The documents to send, in relevance order: each once, if the job de-duplicates."""
        return tuple(dict.fromkeys(entry.documents)) if self._dedup else entry.documents

    def groups(self) -> Sequence[Sequence[int]]:
        """Positions of the requests that can share prefixes: one list for each head, in order of
        appearance, and last the requests with nothing to plan."""
        groups: list[list[int]] = [[] for _ in range(len(self._heads) + 1)]
        for position, entry in enumerate(self.entries):
            groups[entry.head].append(position)
        return groups

    def _number(self, document: Document) -> int:
        key = bytes.fromhex(document.key)
        number = self._documents.get(key)
        if number is None:
            number = self._documents[key] = len(self._documents)
            self.tokens.extend(self._counter.count_documents([document]))
        return number
