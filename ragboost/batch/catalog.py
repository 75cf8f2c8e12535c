"""The index of a batch file: the offset of each request, and a number for each document.

Holds no texts, so that memory grows by a few hundred bytes a request, not with the file.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import BinaryIO, NamedTuple

from ragboost.batch.lines import BatchLine, LineParser
from ragboost.errors import RagBoostError
from ragboost.tokens import TokenCounter
from ragboost.types import Document

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the amount done and the total."""

Rejected = Callable[[int, bytes, RagBoostError], object]
"""Called with the number of a malformed line, the line and the error."""

_EVERY = 64  # lines between two reports of progress


class CatalogEntry(NamedTuple):
    """A request of the file.

    Attributes:
        line: its line number in the input, from 1.
        offset: the first byte of that line.
        head: number of the text before the documents; -1 if there is nothing to plan.
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
        dedup: send a document that a request repeats only once.
    """

    def __init__(self, tokens: TokenCounter, *, dedup: bool) -> None:
        self.entries: list[CatalogEntry] = []
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
        self.entries.append(CatalogEntry(number, offset, head, documents))

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

    def _number(self, document: Document) -> int:
        key = bytes.fromhex(document.key)
        number = self._documents.get(key)
        if number is None:
            number = self._documents[key] = len(self._documents)
            self.tokens.extend(self._counter.count_documents([document]))
        return number


def read_requests(
    source: BinaryIO,
    catalog: DocumentCatalog,
    *,
    parser: LineParser,
    on_rejected: Rejected,
    on_progress: Progress,
) -> int:
    """Fill a catalog from a file and return the number of malformed lines; skip blank lines."""
    total = source.seek(0, 2)
    source.seek(0)
    rejected = offset = 0
    for number, raw in enumerate(source, 1):
        try:
            if raw.strip():
                catalog.add(parser.parse(raw), number=number, offset=offset)
        except RagBoostError as error:
            rejected += 1
            on_rejected(number, raw, error)
        offset += len(raw)
        if number % _EVERY == 0 or offset == total:
            on_progress("reading", offset, total)
    return rejected
