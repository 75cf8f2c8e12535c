"""Windows that are ordered one by one, in any order, make the file that one job makes."""

import random
from pathlib import Path

import pytest

from ragboost.batch import BatchSummary, run_batch
from ragboost.batch.catalog import FilePlace
from ragboost.batch.pieces import WindowSpan, join_pieces, order_piece, split_file
from ragboost.config import Settings
from tests.batch.test_windows import write_requests

NAMES = ("out.jsonl", "out.positions.jsonl", "out.rejects.jsonl")


@pytest.mark.parametrize("window", [1, 7, 40, 100])
def test_pieces_in_any_order_are_the_file_of_one_job(tmp_path: Path, window: int) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    expected = run_batch(source, tmp_path / "out.jsonl", window=window, cache_tokens=300)
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    start = BatchSummary(cache_tokens=300)
    with source.open("rb") as file:
        spans = list(split_file(file, window))
    shuffled = random.Random(1).sample(spans, len(spans))

    summaries = {
        span.number: order_piece(source, pieces, span, settings=Settings(), start=start)
        for span in shuffled
    }
    paths = [tmp_path / f"joined.{name}" for name in NAMES]
    files = [path.open("wb") for path in paths]
    summary = join_pieces(pieces, [summaries[n] for n in range(len(spans))], files)
    for file in files:
        file.close()

    assert summary == expected
    for path, name in zip(paths, NAMES, strict=True):
        assert path.read_bytes() == (tmp_path / name).read_bytes()


def test_malformed_and_blank_lines_belong_to_their_window(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 8, bad=(2,))
    source.write_bytes(b"\n" + source.read_bytes())
    with source.open("rb") as file:
        spans = list(split_file(file, 4))
    assert [(span.start.line, span.num_lines) for span in spans] == [(0, 4), (4, 4), (8, 2)]

    start = BatchSummary()
    summaries = [
        order_piece(source, tmp_path, span, settings=Settings(), start=start) for span in spans
    ]

    assert [(each.requests, each.rejected) for each in summaries] == [(3, 0), (3, 1), (2, 0)]


def test_an_empty_file_is_one_window_without_lines(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.touch()
    with source.open("rb") as file:
        assert list(split_file(file, 4)) == [WindowSpan(0, FilePlace(), 0)]

    start = BatchSummary()
    span = WindowSpan(0, FilePlace(), 0)
    summary = order_piece(source, tmp_path, span, settings=Settings(), start=start)

    assert (summary.requests, summary.windows) == (0, 1)
