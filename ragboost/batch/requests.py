"""Read a batch file into memory: its requests, and a number for each different document."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from ragboost.batch.lines import BatchLine, LineParser, encode_json
from ragboost.booster.tokens import make_offline_counter
from ragboost.config import Settings
from ragboost.errors import RagBoostError, RequestError
from ragboost.types import Document

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the amount done and the total."""

# Bytes that a job holds at its peak beside the lines, planning and prediction included. An estimate
# from above; see docs/lab/batch-scale.md.
_REQUEST_BYTES = 1_500
_PLACE_BYTES = 420  # one document of one request
_DOCUMENT_BYTES = 420  # one different document

EVERY = 64
"""Lines between two reports of progress."""


class BatchRequests:
    """The requests of a batch file, in the order of the file."""

    def __init__(self, settings: Settings) -> None:
        self.lines: list[bytes] = []  # by request; empty for a trace
        self.input_lines = array("q")  # by request, its line number, from 1
        self.heads = array("q")  # by request: number of its head; -1 if there is nothing to plan
        self.documents: list[array[int]] = []  # by request: their numbers, in relevance order
        self.tokens = array("q")  # by document number
        self.detections: Counter[str] = Counter()  # of the requests: found, or why there are none
        self.num_blank = 0  # documents without text, which are left out
        self.rejected = 0
        self.problem = ""  # of the first rejected line
        self._counter = make_offline_counter(settings.tokens)
        self._dedup = settings.dedup.enabled
        self._head_numbers: dict[str, int] = {}
        self._document_numbers: dict[bytes, int] = {}
        self._num_places = 0
        self._num_bytes = 0

    @property
    def size_bytes(self) -> int:
        return (
            self._num_bytes
            + _REQUEST_BYTES * len(self.documents)
            + _PLACE_BYTES * self._num_places
            + _DOCUMENT_BYTES * len(self._document_numbers)
        )

    def add(self, line: BatchLine, *, number: int) -> None:
        head = -1
        if line.documents and line.is_boost_wanted:
            head = self._head_numbers.setdefault(line.head, len(self._head_numbers))
        lengths = line.tokens or [None] * len(line.documents)
        self.input_lines.append(number)
        self.heads.append(head)
        self.documents.append(array("q", map(self._number, line.documents, lengths)))
        self.detections[line.detection] += 1
        self.num_blank += len(line.blank)
        self._num_places += len(line.documents)

    def keep(self, raw: bytes) -> None:
        """Keep the last request's line, to write it in another order."""
        self.lines.append(raw)
        self._num_bytes += len(raw)

    def sent(self, position: int) -> Sequence[int]:
        """Return the documents to send, in relevance order; each once if the job de-duplicates."""
        documents = self.documents[position]
        return tuple(dict.fromkeys(documents)) if self._dedup else documents

    def groups(self) -> Sequence[Sequence[int]]:
        """Return the positions of the requests that can share prefixes: one list per head, in order
        of appearance, and last the requests with nothing to plan."""
        groups: list[list[int]] = [[] for _ in range(len(self._head_numbers) + 1)]
        for position, head in enumerate(self.heads):
            groups[head].append(position)
        return groups

    def _number(self, document: Document, tokens: int | None) -> int:
        key = bytes.fromhex(document.key)
        number = self._document_numbers.get(key)
        if number is None:
            number = self._document_numbers[key] = len(self._document_numbers)
            if tokens is None:
                [tokens] = self._counter.count_documents([document])
            self.tokens.append(tokens)
        return number


def read_requests(
    source: BinaryIO,
    parser: LineParser,
    *,
    settings: Settings,
    on_progress: Progress,
    rejects: BinaryIO | None,
    memory_mb: int | None = None,
) -> BatchRequests:
    """Read a file, and write its malformed lines to `rejects`. Blank lines are skipped.

    Without `rejects` it is a trace, whose lines are not kept. Raises `RequestError` if the requests
    need more memory than `memory_mb`.
    """
    requests = BatchRequests(settings)
    total, done = source.seek(0, 2), 0
    source.seek(0)
    for number, raw in enumerate(source, 1):
        try:
            if raw.strip():
                requests.add(parser.parse(raw), number=number)
                if rejects is not None:
                    requests.keep(raw)
        except RagBoostError as error:
            requests.rejected += 1
            requests.problem = requests.problem or f"line {number}: {error}"
            if rejects is not None:
                rejects.write(_rejected(number, raw, error))
        if memory_mb is not None and requests.size_bytes > memory_mb * 1_000_000:
            raise RequestError(_too_large(Path(source.name), number, memory_mb), param="memory_mb")
        done += len(raw)
        if number % EVERY == 0 or done == total:
            on_progress("reading", done, total)
    return requests


def _rejected(number: int, raw: bytes, error: RagBoostError) -> bytes:
    text = raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    return encode_json({"line": number, "error": str(error), "text": text}) + b"\n"


def _too_large(path: Path, line: int, memory_mb: int) -> str:
    return (
        f"{path} needs more than {memory_mb:,} MB of memory from line {line:,} on: allow more with "
        "--memory, or plan it with Ray Data, ragboost.integrations.ray.boosted(dataset, window=N)"
    )
