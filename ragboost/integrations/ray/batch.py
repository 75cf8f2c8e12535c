"""`ragboost batch --ray`: order the windows of a batch file in the processes of a Ray cluster."""

import shutil
from pathlib import Path
from typing import Any

from ragboost.batch import BatchSummary
from ragboost.batch.catalog import FilePlace, Progress
from ragboost.batch.checkpoint import GrowingFiles
from ragboost.batch.files import open_input, output_paths
from ragboost.batch.pieces import WindowSpan, join_pieces, order_piece, split_file
from ragboost.config import Settings
from ragboost.errors import RagBoostError, RequestError, import_extra
from ragboost.retrieval.corpus import Corpus

_MAX_BLOCKS = 1_000  # of windows, each of which is a task


def run_batch_on_ray(
    source: Path,
    output: Path,
    *,
    window: int,
    settings: Settings | None = None,
    corpus: Path | None = None,
    cache_tokens: int | None = None,
    block_size: int | None = None,
    strict: bool = False,
    on_progress: Progress = lambda *_: None,
) -> BatchSummary:
    """Order a file of requests as `run_batch` does, its windows in the processes of a Ray cluster.

    Joins the cluster at `RAY_ADDRESS`, or starts one here. All machines share the storage of
    source, corpus and output. A window that failed with its machine is ordered again.
    """
    if window < 1:
        raise RequestError(f"window must be at least 1, got {window}", param="window")
    paths = output_paths(output, inputs=[source, *([corpus] if corpus else [])])
    with open_input(source) as file:
        spans = list(split_file(file, window))
    start = BatchSummary(cache_tokens=cache_tokens, block_size=block_size)
    folder = _make_folder(output)
    try:
        summaries = _order(
            spans,
            on_progress=on_progress,
            source=str(source.resolve()),
            folder=str(folder),
            settings=settings or Settings(),
            corpus=str(corpus.resolve()) if corpus else None,
            start=start,
        )
        with GrowingFiles(paths, fingerprint="", resume=False, start=start) as growing:
            summary = join_pieces(folder, summaries, growing.files)
            growing.finish(summary, source=source, is_strict=strict)
            return summary
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(output: Path) -> Path:
    folder = output.with_name(f".{output.name}.windows").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir()
    except OSError as error:
        raise RequestError(f"cannot write {folder}: {error.strerror}") from None
    return folder


def _order(spans: list[WindowSpan], *, on_progress: Progress, **options: Any) -> list[BatchSummary]:
    ray_data: Any = import_extra("ray.data", extra="ray")
    rows = [{"number": n, "line": at.line, "offset": at.offset, "lines": m} for n, at, m in spans]
    windows = ray_data.from_items(rows, override_num_blocks=min(len(rows), _MAX_BLOCKS))
    ordered = windows.map(
        _WindowOrderer, fn_constructor_kwargs=options, concurrency=(1, len(rows)), num_cpus=1
    )
    summaries: dict[int, BatchSummary] = {}
    for row in ordered.iter_rows():
        if row["error"]:
            raise RequestError(row["error"])
        summaries[row["number"]] = BatchSummary.from_json(row["summary"])
        on_progress("planning", len(summaries), len(spans))
    return [summaries[number] for number in range(len(spans))]


class _WindowOrderer:
    def __init__(self, *, source: str, folder: str, corpus: str | None, **options: Any) -> None:
        self._source, self._folder = Path(source), Path(folder)
        self._options = options
        self._corpus_path = corpus
        self._corpus: Corpus | None = None

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        span = WindowSpan(row["number"], FilePlace(row["line"], row["offset"]), row["lines"])
        try:
            if self._corpus is None and self._corpus_path is not None:
                self._corpus = Corpus.read(self._corpus_path)
            summary = order_piece(
                self._source, self._folder, span, corpus=self._corpus, **self._options
            )
        except (RagBoostError, OSError) as error:  # Ray would wrap it in a traceback
            return {"number": span.number, "summary": None, "error": str(error)}
        return {"number": span.number, "summary": summary.as_json(), "error": ""}
