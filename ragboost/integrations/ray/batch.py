"""`ragboost batch --ray`: the windows of a batch file in the processes of a Ray cluster.

Ray Data distributes the windows; their lines are read and written by the processes themselves, in
storage that all of them share.
"""

import shutil
from pathlib import Path
from typing import Any

from ragboost.batch import BatchSummary, RejectedLinesError
from ragboost.batch.catalog import FilePlace, Progress
from ragboost.batch.checkpoint import GrowingFiles
from ragboost.batch.files import check_output, open_input, side_path
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
    improve_s: float = 0.0,
    strict: bool = False,
    on_progress: Progress = lambda *_: None,
) -> BatchSummary:
    """Order a file of requests as `run_batch` does, its windows in the processes of a Ray cluster.

    Joins the cluster at `RAY_ADDRESS`, or starts one here. A window that failed with its machine is
    ordered again. The windows are kept in a folder beside the output until all are there.

    Args:
        source: JSONL, readable by all machines under this path.
        output: the file to write, in storage that all machines share.
        window: lines planned together.
        settings: settings of ordering, de-duplication and hints.
        corpus: file of the documents, likewise; each process reads it once.
        cache_tokens: capacity for the prediction; None if unbounded.
        block_size: block size in tokens for the prediction; None for whole documents.
        improve_s: seconds of a search for a better plan of each window.
        strict: fail on malformed lines; then only the rejects are written.
        on_progress: called after each window.

    Raises:
        MissingExtraError: ray is not installed.
        RequestError: a file cannot be read or written, or a number is out of range.
        RejectedLinesError: `strict`, and there are malformed lines.
    """
    if window < 1:
        raise RequestError(f"window must be at least 1, got {window}", param="window")
    paths = [output, side_path(output, "positions"), side_path(output, "rejects")]
    for path in paths:
        check_output(path, inputs=[source, *([corpus] if corpus else [])])
    with open_input(source) as file:
        spans = list(split_file(file, window))
    start = BatchSummary(cache_tokens=cache_tokens, block_size=block_size)
    folder = output.with_name(f".{output.name}.windows").resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        options = {
            "source": str(source.resolve()),
            "folder": str(folder),
            "settings": settings or Settings(),
            "corpus": str(corpus.resolve()) if corpus else None,
            "improve_s": improve_s,
            "start": start,
        }
        summaries = _order(spans, options, on_progress=on_progress)
        with GrowingFiles(paths, fingerprint="", resume=False, start=start) as growing:
            summary = join_pieces(folder, summaries, growing.files)
            if strict and summary.rejected:
                growing.finish(2)
                raise RejectedLinesError(
                    f"{source}: malformed lines: {summary.rejected}, see {paths[2]}"
                )
            for number in range(len(paths)):
                growing.finish(number)
        return summary
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _order(
    spans: list[WindowSpan], options: dict[str, Any], *, on_progress: Progress
) -> list[BatchSummary]:
    """Order all windows, in any order, and return their summaries in that of the file."""
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
    """Orders windows in one process of the cluster."""

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
