"""Order the windows of a batch file in any order and process, in a shared folder, and join them."""

import itertools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ragboost.batch.catalog import FilePlace
from ragboost.batch.files import open_input
from ragboost.batch.lines import encode_json
from ragboost.batch.summary import BatchSummary
from ragboost.batch.window import WindowJob
from ragboost.config import Settings
from ragboost.retrieval.corpus import Corpus

_PARTS = ("ordered", "positions", "rejects")


class WindowSpan(NamedTuple):
    number: int  # from 0
    start: FilePlace  # its place in the file
    num_lines: int  # blank and malformed ones included


def split_file(source: BinaryIO, window: int) -> Iterator[WindowSpan]:
    """Yield windows of so many lines; an empty file is one window of no lines."""
    source.seek(0)
    line = offset = 0
    for number in itertools.count():
        lines = [len(raw) for raw in itertools.islice(source, window)]
        if not lines and number:
            return
        yield WindowSpan(number, FilePlace(line, offset), len(lines))
        line, offset = line + len(lines), offset + sum(lines)


def order_piece(
    source: Path,
    folder: Path,
    span: WindowSpan,
    *,
    settings: Settings,
    corpus: Corpus | None = None,
    start: BatchSummary,
) -> BatchSummary:
    """Order one window and write it into a folder; the same call again writes the same."""
    job = WindowJob(settings, corpus=corpus)
    lines = itertools.count(1)
    with open_input(source) as file, ExitStack() as stack:
        ordered, positions, rejects = (
            stack.enter_context(_path(folder, span.number, name).open("wb")) for name in _PARTS
        )
        read = job.read(
            file, rejects, start=span.start, is_full=lambda _: next(lines) >= span.num_lines
        )
        planned = job.plan()
        job.write(file, ordered, positions, planned=planned)
        return start.with_window(job.catalog, planned, rejected=read.rejected)


def join_pieces(
    folder: Path, summaries: Sequence[BatchSummary], files: Sequence[BinaryIO]
) -> BatchSummary:
    """Append all windows, in order, to the three files; return the summary of the whole."""
    output, positions, rejects = files
    first, *_ = summaries
    total = BatchSummary(cache_tokens=first.cache_tokens, block_size=first.block_size)
    for number, summary in enumerate(summaries):
        with _path(folder, number, "ordered").open("rb") as part:
            shutil.copyfileobj(part, output)
        with _path(folder, number, "rejects").open("rb") as part:
            shutil.copyfileobj(part, rejects)
        with _path(folder, number, "positions").open("rb") as part:
            for raw in part:
                place = json.loads(raw)
                place["output_line"] += total.requests
                positions.write(encode_json(place) + b"\n")
        total = total.plus(summary)
    return total


def _path(folder: Path, number: int, part: str) -> Path:
    return folder / f"{number:08}.{part}"
