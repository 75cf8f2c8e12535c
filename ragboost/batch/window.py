"""Order one window of a batch file: read it, plan it, write it in release order.

The first pass keeps numbers only (see `catalog`), the second reads each line again.
"""

import codecs
from collections.abc import Sequence
from typing import BinaryIO, NamedTuple

from ragboost.batch.catalog import FILE_START, DocumentCatalog, FilePlace, IsFull, Progress
from ragboost.batch.lines import BatchLine, LineParser, encode_json, kept
from ragboost.batch.plan import FilePlan, plan_file
from ragboost.booster.compose import Retrieved, compose
from ragboost.booster.session_state import CarriedDocuments
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.dedup import unique_documents
from ragboost.errors import RagBoostError, RequestError
from ragboost.retrieval.corpus import Corpus
from ragboost.tokens import make_offline_counter

_NO_HISTORY = CarriedDocuments(known={}, carried={}, is_empty=True, is_complete=True, owners={})
_EVERY = 64  # lines between two reports of progress


class WindowRead(NamedTuple):
    rejected: int
    problem: str  # of the first rejected line; empty without one
    end: FilePlace  # where the next window begins
    is_last: bool  # the file ends there


class WindowJob:
    """The two passes over one window, with their shared state."""

    def __init__(
        self,
        settings: Settings,
        *,
        corpus: Corpus | None = None,
        on_progress: Progress = lambda *_: None,
        reads_records: bool = False,
    ) -> None:
        self._settings = settings
        self._counter = make_offline_counter(settings.tokens)
        self._parser = LineParser(settings, corpus=corpus, reads_records=reads_records)
        self._on_progress = on_progress
        self.catalog = self._empty()  # the requests of the window

    def read(
        self,
        source: BinaryIO,
        rejects: BinaryIO | None,
        *,
        start: FilePlace = FILE_START,
        is_full: IsFull | None = None,
    ) -> WindowRead:
        """Fill the catalog (first pass) instead of the last window's, and write the rejects.

        Skips blank lines; reads to the end of the file, or until `is_full` after a line.
        """
        self.catalog = self._empty()
        total = source.seek(0, 2)
        source.seek(start.offset)
        rejected, problem, (line, offset) = 0, "", start
        for raw in source:
            line += 1
            try:
                if raw.strip():
                    self.catalog.add(self._parser.parse(raw), number=line, offset=offset)
            except RagBoostError as error:
                rejected += 1
                problem = problem or f"line {line}: {error}"
                if rejects is not None:
                    rejects.write(_rejected(line, raw, error))
            offset += len(raw)
            if line % _EVERY == 0 or offset == total:
                self._on_progress("reading", offset, total)
            if is_full is not None and offset < total and is_full(self.catalog):
                break
        return WindowRead(rejected, problem, FilePlace(line, offset), is_last=offset >= total)

    def plan(self) -> FilePlan:
        self._on_progress("planning", 0, 1)
        plan = plan_file(self.catalog, self._settings.ordering)
        self._on_progress("planning", 1, 1)
        return plan

    def write(
        self,
        source: BinaryIO,
        output: BinaryIO,
        positions: BinaryIO,
        *,
        planned: FilePlan,
        lines_before: int = 0,
    ) -> None:
        """Write the requests and their positions (second pass), behind so many output lines."""
        total = len(planned.release)
        for at, position in enumerate(planned.release, 1):
            entry = self.catalog.entries[position]
            source.seek(entry.offset)
            raw = source.readline()
            line = self._parser.parse(raw)
            if len(line.documents) != len(entry.documents):
                raise RequestError(f"line {entry.line} changed while the job ran: start it again")
            context = self._context(line, planned.permutations[position])
            value = line.write(context)
            output.write(_verbatim(raw) if value == line.value else encode_json(value))
            output.write(b"\n")
            where = {
                "input_line": entry.line,
                "output_line": lines_before + at,
                "id": line.id,
                "documents": kept(context, line.blank) if context else [],
            }
            positions.write(encode_json(where) + b"\n")
            if at % _EVERY == 0 or at == total:
                self._on_progress("writing", at, total)

    def _empty(self) -> DocumentCatalog:
        return DocumentCatalog(self._counter, dedup=self._settings.dedup.enabled)

    def _context(self, line: BatchLine, permutation: Sequence[int]) -> Context | None:
        if not line.documents:
            return None
        settings = self._settings if line.is_boost_wanted else _as_they_are(self._settings)
        unique = unique_documents(line.documents) if settings.dedup.enabled else line.documents
        retrieved = Retrieved(line.query, line.documents, unique, (), ())
        return compose(retrieved, permutation, history=_NO_HISTORY, settings=settings)


def _as_they_are(settings: Settings) -> Settings:
    return settings.model_copy(
        update={
            "dedup": settings.dedup.model_copy(update={"enabled": False}),
            "hints": settings.hints.model_copy(update={"order": False}),
        }
    )


def _verbatim(raw: bytes) -> bytes:
    return raw.rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8)


def _rejected(number: int, raw: bytes, error: RagBoostError) -> bytes:
    text = raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    return encode_json({"line": number, "error": str(error), "text": text}) + b"\n"
