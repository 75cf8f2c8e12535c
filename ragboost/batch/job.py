"""Run the offline job over a file: read it, plan it, write it in release order.

Makes two passes over the input. The first keeps numbers only (see `catalog`), the second reads each
line again at its offset. Does not know wire shapes; see `lines`.
"""

import codecs
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ragboost.batch.catalog import DocumentCatalog, Progress, read_requests
from ragboost.batch.files import atomic_file, check_output, open_input, side_path
from ragboost.batch.lines import BatchLine, LineParser, encode_json, kept
from ragboost.batch.plan import FilePlan, plan_file, predict
from ragboost.booster.compose import Retrieved, compose
from ragboost.booster.session_state import CarriedDocuments
from ragboost.config import Settings
from ragboost.context import Context
from ragboost.dedup import unique_documents
from ragboost.errors import RagBoostError, RequestError
from ragboost.retrieval.corpus import Corpus
from ragboost.simulate import HitRate, SimulatedCache
from ragboost.tokens import make_offline_counter

_NO_HISTORY = CarriedDocuments(known={}, carried={}, is_empty=True, is_complete=True)
_EVERY = 64  # lines between two reports of progress


@dataclass(frozen=True)
class BatchSummary:
    """The result of a job.

    Attributes:
        requests: lines written.
        rejected: malformed lines.
        documents: documents in the requests, as given.
        duplicates_removed: documents removed because their request repeats them.
        requests_reordered: requests whose documents are in another order.
        cache_tokens: capacity of the simulated prefix cache; None if unbounded.
        block_size: its block size in tokens; None for whole documents.
        before: predicted hit rate of the input.
        after: predicted hit rate of the output.
    """

    requests: int
    rejected: int
    documents: int
    duplicates_removed: int
    requests_reordered: int
    cache_tokens: int | None
    block_size: int | None
    before: HitRate
    after: HitRate

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object with hit rates beside their token counts."""
        fields = asdict(self)
        for name in ("before", "after"):
            rate: HitRate = getattr(self, name)
            fields[name] = {
                "hit_rate": round(rate.hit_rate, 4),
                "cached_tokens": rate.cached_tokens,
                "prompt_tokens": rate.prompt_tokens,
            }
        return fields


class RejectedLinesError(RequestError):
    """A strict job found malformed lines."""


def run_batch(
    source: Path,
    output: Path,
    *,
    settings: Settings | None = None,
    corpus: Corpus | None = None,
    cache_tokens: int | None = None,
    block_size: int | None = None,
    improve_s: float = 0.0,
    strict: bool = False,
    keep: Sequence[Path] = (),
    on_progress: Progress | None = None,
) -> BatchSummary:
    """Order a file of requests.

    Writes `output` in release order, and beside it `*.positions.jsonl` (the input line of each
    output line and the new order of its documents) and `*.rejects.jsonl` (malformed lines with
    number and error). Each file is complete or absent. Unchanged lines keep their bytes.

    Args:
        source: JSONL; see `lines`. Blank lines are skipped.
        output: the file to write; not an input.
        settings: settings of ordering, de-duplication and hints.
        corpus: for lines with `doc_ids`.
        cache_tokens: capacity for the prediction; None if unbounded.
        block_size: block size in tokens for the prediction; None for whole documents.
        improve_s: seconds of a search for a better plan.
        strict: fail on malformed lines; then only the rejects are written.
        keep: further files that must not be overwritten, such as the corpus.
        on_progress: called periodically.

    Raises:
        RequestError: a file cannot be read or written, or a number is out of range.
        RejectedLinesError: `strict`, and there are malformed lines.
    """
    job = _Job(settings or Settings(), corpus, on_progress or (lambda *_: None))
    SimulatedCache({}, capacity_tokens=cache_tokens, block_size=block_size)  # checks both
    positions, rejects = side_path(output, "positions"), side_path(output, "rejects")
    for path in (output, positions, rejects):
        check_output(path, inputs=[source, *keep])
    with open_input(source) as file:
        with atomic_file(rejects) as rejects_file:
            rejected = job.read(file, rejects_file)
        if rejected and strict:
            raise RejectedLinesError(f"{source}: malformed lines: {rejected}, see {rejects}")
        planned = job.plan(improve_s)
        with ExitStack() as stack:
            files = [stack.enter_context(atomic_file(path)) for path in (output, positions)]
            job.write(file, *files, planned=planned)
    return _summary(
        job.catalog, planned, rejected=rejected, cache_tokens=cache_tokens, block_size=block_size
    )


def _summary(
    catalog: DocumentCatalog,
    planned: FilePlan,
    *,
    rejected: int,
    cache_tokens: int | None,
    block_size: int | None,
) -> BatchSummary:
    entries = catalog.entries
    return BatchSummary(
        requests=len(entries),
        rejected=rejected,
        documents=sum(len(entry.documents) for entry in entries),
        duplicates_removed=sum(
            len(entry.documents) - len(permutation)
            for entry, permutation in zip(entries, planned.permutations, strict=True)
        ),
        requests_reordered=sum(list(p) != sorted(p) for p in planned.permutations),
        cache_tokens=cache_tokens,
        block_size=block_size,
        before=predict(catalog, None, cache_tokens=cache_tokens, block_size=block_size),
        after=predict(catalog, planned, cache_tokens=cache_tokens, block_size=block_size),
    )


class _Job:
    """The two passes over one file and their shared state."""

    def __init__(self, settings: Settings, corpus: Corpus | None, on_progress: Progress) -> None:
        counter = make_offline_counter(settings.tokens)
        self.catalog = DocumentCatalog(counter, dedup=settings.dedup.enabled)
        self._settings = settings
        self._parser = LineParser(settings, corpus=corpus)
        self._on_progress = on_progress

    def read(self, source: BinaryIO, rejects: BinaryIO) -> int:
        """Fill the catalog (first pass) and return the number of malformed lines."""
        return read_requests(
            source,
            self.catalog,
            parser=self._parser,
            on_rejected=lambda *rejected: rejects.write(_rejected(*rejected)),
            on_progress=self._on_progress,
        )

    def plan(self, improve_s: float) -> FilePlan:
        """Order documents and requests."""
        self._on_progress("planning", 0, 1)
        plan = plan_file(
            self.catalog,
            self._settings.ordering,
            improve_s=improve_s,
            on_progress=self._on_progress,
        )
        self._on_progress("planning", 1, 1)
        return plan

    def write(
        self, source: BinaryIO, output: BinaryIO, positions: BinaryIO, *, planned: FilePlan
    ) -> None:
        """Write the requests and their positions (second pass)."""
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
                "output_line": at,
                "id": line.id,
                "documents": kept(context) if context else [],
            }
            positions.write(encode_json(where) + b"\n")
            if at % _EVERY == 0 or at == total:
                self._on_progress("writing", at, total)

    def _context(self, line: BatchLine, permutation: Sequence[int]) -> Context | None:
        if not line.documents:
            return None
        settings = self._settings if line.is_boost_wanted else _as_they_are(self._settings)
        if settings.dedup.enabled:
            unique, slots = unique_documents(line.documents)
        else:
            unique, slots = line.documents, tuple(range(len(line.documents)))
        retrieved = Retrieved(line.query, line.documents, unique, slots, (), ())
        composed = compose(retrieved, permutation, history=_NO_HISTORY, settings=settings)
        return Context(
            query=line.query,
            documents=composed.documents,
            retrieved=line.documents,
            positions=composed.positions,
            labels=composed.labels,
            hints=composed.hints,
            hint_position=settings.hints.position,
        )


def _as_they_are(settings: Settings) -> Settings:
    """Return the settings for a request whose caller wants its documents unchanged."""
    return settings.model_copy(
        update={
            "dedup": settings.dedup.model_copy(update={"enabled": False}),
            "hints": settings.hints.model_copy(update={"order": False}),
        }
    )


def _verbatim(raw: bytes) -> bytes:
    """Return a line's bytes without its line end and byte order mark."""
    return raw.rstrip(b"\r\n").removeprefix(codecs.BOM_UTF8)


def _rejected(number: int, raw: bytes, error: RagBoostError) -> bytes:
    text = raw.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
    return encode_json({"line": number, "error": str(error), "text": text}) + b"\n"
