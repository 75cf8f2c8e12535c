"""The index of a window of a batch file: the offset of each request, a number for each document.

Holds no texts: memory grows by a few hundred bytes a request.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ragboost.batch.lines import BatchLine
from ragboost.tokens import TokenCounter
from ragboost.types import Document

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the amount done and the total."""

IsFull = Callable[["DocumentCatalog"], bool]
"""Decides after each line whether a window ends."""

# Bytes that a job holds at its peak, planning and prediction included, beside the working arrays of
# the clustering (about 8 MB). An estimate from above; see docs/lab/batch-scale.md.
_REQUEST_BYTES = 1_500
_PLACE_BYTES = 420  # one document of one request
_DOCUMENT_BYTES = 420  # one different document


class FilePlace(NamedTuple):
    line: int = 0  # number of lines before it
    offset: int = 0  # number of bytes before it


FILE_START = FilePlace()


class CatalogEntry(NamedTuple):
    line: int  # its line number in the input, from 1
    offset: int  # the first byte of that line
    head: int  # number of the text before the documents; -1 if there is nothing to plan
    documents: "array[int]"  # numbers of its documents, in relevance order


class DocumentCatalog:
    """The requests of a window, in the order of the file."""

    def __init__(self, tokens: TokenCounter, *, dedup: bool) -> None:
        self.entries: list[CatalogEntry] = []
        self.tokens = array("q")  # by document number
        self.detections: Counter[str] = Counter()  # of the requests: found, or why there are none
        self._counter = tokens
        self._dedup = dedup
        self._documents: dict[bytes, int] = {}
        self._heads: dict[str, int] = {}
        self.num_blank = 0  # documents without text, which are left out
        self._num_places = 0

    @property
    def size_bytes(self) -> int:
        return (
            _REQUEST_BYTES * len(self.entries)
            + _PLACE_BYTES * self._num_places
            + _DOCUMENT_BYTES * len(self._documents)
        )

    def add(self, line: BatchLine, *, number: int, offset: int) -> None:
        head = -1
        if line.documents and line.is_boost_wanted:
            head = self._heads.setdefault(line.head, len(self._heads))
        lengths = line.tokens or [None] * len(line.documents)
        documents = array("q", map(self._number, line.documents, lengths))
        self.detections[line.detection] += 1
        self.entries.append(CatalogEntry(number, offset, head, documents))
        self._num_places += len(documents)
        self.num_blank += len(line.blank)

    def sent(self, entry: CatalogEntry) -> Sequence[int]:
        """Return the documents to send, in relevance order; each once if the job de-duplicates."""
        return tuple(dict.fromkeys(entry.documents)) if self._dedup else entry.documents

    def groups(self) -> Sequence[Sequence[int]]:
        """Return the positions of the requests that can share prefixes: one list per head, in order
        of appearance, and last the requests with nothing to plan."""
        groups: list[list[int]] = [[] for _ in range(len(self._heads) + 1)]
        for position, entry in enumerate(self.entries):
            groups[entry.head].append(position)
        return groups

    def _number(self, document: Document, tokens: int | None) -> int:
        key = bytes.fromhex(document.key)
        number = self._documents.get(key)
        if number is None:
            number = self._documents[key] = len(self._documents)
            if tokens is None:
                [tokens] = self._counter.count_documents([document])
            self.tokens.append(tokens)
        return number
