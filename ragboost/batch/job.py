"""Run the offline job over a file, window by window: read, plan, write in release order."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from ragboost.batch.catalog import DocumentCatalog, IsFull, Progress
from ragboost.batch.checkpoint import Checkpoint, GrowingFiles
from ragboost.batch.files import open_input, output_paths
from ragboost.batch.summary import BatchSummary
from ragboost.batch.window import WindowJob
from ragboost.config import Settings
from ragboost.errors import RequestError
from ragboost.retrieval.corpus import Corpus
from ragboost.simulate import SimulatedCache

_MB = 1_000_000


def run_batch(
    source: Path,
    output: Path,
    *,
    settings: Settings | None = None,
    corpus: Corpus | None = None,
    cache_tokens: int | None = None,
    block_size: int | None = None,
    window: int | None = None,
    memory_mb: int | None = None,
    resume: bool = False,
    strict: bool = False,
    keep: Sequence[Path] = (),
    on_progress: Progress | None = None,
) -> BatchSummary:
    """Order a file of requests.

    Writes `output` in release order, and beside it `*.positions.jsonl` (the input line of each
    output line and the new order of its documents) and `*.rejects.jsonl` (malformed lines with
    number and error). Each file is complete or absent. Unchanged lines keep their bytes.

    `cache_tokens` (None: unbounded) and `block_size` (None: whole documents) are of the prediction.
    `window` requests, or as many as fit into `memory_mb`, are planned together. With `strict`,
    malformed lines fail the job, as always if there is no other line. `keep` are further files that
    it must not overwrite.
    """
    settings = settings or Settings()
    SimulatedCache({}, capacity_tokens=cache_tokens, block_size=block_size)  # checks both
    is_full, inputs = _bound(window, memory_mb), [source, *keep]
    paths = output_paths(output, inputs=inputs)
    with open_input(source) as file:
        options = (cache_tokens, block_size, window, memory_mb, strict)
        start = BatchSummary(cache_tokens=cache_tokens, block_size=block_size)
        fingerprint = _fingerprint(inputs, settings, options)
        with GrowingFiles(paths, fingerprint=fingerprint, resume=resume, start=start) as growing:
            job = WindowJob(settings, corpus=corpus, on_progress=on_progress or (lambda *_: None))
            summary = _run(job, file, growing, is_full=is_full, strict=strict)
            growing.finish(summary, source=source, is_strict=strict)
    return summary


def _run(
    job: WindowJob,
    source: BinaryIO,
    growing: GrowingFiles,
    *,
    is_full: IsFull | None,
    strict: bool,
) -> BatchSummary:
    """Write all windows; after a reject, a strict job only reads on and forgets the others."""
    place, summary = growing.checkpoint
    output, positions, rejects = growing.files
    while True:
        read = job.read(source, rejects, start=place, is_full=is_full)
        if strict and summary.rejected + read.rejected:
            growing.forget()
            rejected, problem = summary.rejected + read.rejected, summary.problem or read.problem
            summary = BatchSummary(rejected=rejected, problem=problem)
        else:
            planned = job.plan()
            job.write(source, output, positions, planned=planned, lines_before=summary.requests)
            summary = summary.with_window(
                job.catalog, planned, rejected=read.rejected, problem=read.problem
            )
            del planned  # before the next window is read
        if read.is_last:
            return summary
        place = read.end
        if not (strict and summary.rejected):
            growing.save(Checkpoint(place, summary))


def _bound(window: int | None, memory_mb: int | None) -> IsFull | None:
    for name, value in (("window", window), ("memory_mb", memory_mb)):
        if value is not None and value < 1:
            raise RequestError(f"{name} must be at least 1, got {value}", param=name)
    if window is None and memory_mb is None:
        return None

    def is_full(catalog: DocumentCatalog) -> bool:
        if window is not None and len(catalog.entries) >= window:
            return True
        return memory_mb is not None and catalog.size_bytes >= memory_mb * _MB

    return is_full


def _fingerprint(inputs: Sequence[Path], settings: Settings, options: tuple[object, ...]) -> str:
    parts: list[object] = [options]
    for path in filter(Path.exists, inputs):
        stat = path.stat()
        parts.append((str(path.resolve()), stat.st_size, stat.st_mtime_ns))
    sections = ("tokens", "ordering", "dedup", "hints", "formats")
    parts += [getattr(settings, section).model_dump_json() for section in sections]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
