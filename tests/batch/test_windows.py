"""A file larger than memory is planned in windows, and an interrupted job goes on."""

import gc
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from ragboost.batch import RejectedLinesError, run_batch
from ragboost.batch.catalog import DocumentCatalog
from ragboost.batch.window import WindowJob
from ragboost.config import OrderingSettings, Settings
from ragboost.errors import RequestError
from ragboost.retrieval import Corpus
from ragboost.types import Document

FILES = ("out.jsonl", "out.positions.jsonl", "out.rejects.jsonl")


def write_requests(path: Path, num: int = 40, *, bad: tuple[int, ...] = ()) -> Path:
    """Write requests of four of twelve documents, with malformed lines after some of them."""
    rng = random.Random(1)
    lines = []
    for number in range(num):
        names = rng.sample("abcdefghijkl", 4)
        documents = [{"id": name, "text": f"{name} " * 50} for name in names]
        lines.append(json.dumps({"id": number, "question": "?", "documents": documents}))
        if number in bad:
            lines.append("{broken")
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def read_lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Interrupt:
    """Interrupts a job when it has started to write so many windows."""

    def __init__(self, windows: int) -> None:
        self.left = windows

    def __call__(self, stage: str, done: int, total: int) -> None:
        if stage == "writing" and done == total:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt


def test_windows_keep_every_request_inside_its_window(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40, bad=(3, 25))

    summary = run_batch(source, tmp_path / "out.jsonl", window=16)

    ids = [line["id"] for line in read_lines(tmp_path / "out.jsonl")]
    assert [sorted(ids[at : at + 16]) for at in (0, 16, 32)] == [
        [*range(16)],
        [*range(16, 32)],
        [*range(32, 40)],
    ]
    assert (summary.windows, summary.requests, summary.rejected) == (3, 40, 2)
    assert summary.documents == 160
    assert [entry["line"] for entry in read_lines(tmp_path / "out.rejects.jsonl")] == [5, 28]
    for number, entry in enumerate(read_lines(tmp_path / "out.positions.jsonl"), 1):
        assert entry["output_line"] == number
        assert entry["id"] == ids[number - 1]
        assert entry["input_line"] == entry["id"] + 1 + sum(at < entry["id"] for at in (3, 25))


def test_a_window_is_planned_as_a_file_of_its_own(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 32)
    lines = source.read_bytes().splitlines(keepends=True)
    parts = []
    for at in (0, 16):
        (tmp_path / "part.jsonl").write_bytes(b"".join(lines[at : at + 16]))
        run_batch(tmp_path / "part.jsonl", tmp_path / "part.out.jsonl")
        parts.append((tmp_path / "part.out.jsonl").read_bytes())

    run_batch(source, tmp_path / "out.jsonl", window=16)

    assert (tmp_path / "out.jsonl").read_bytes() == b"".join(parts)


def test_a_window_as_large_as_the_file_changes_nothing(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 20)

    whole = run_batch(source, tmp_path / "whole.jsonl", cache_tokens=300)
    window = run_batch(source, tmp_path / "out.jsonl", cache_tokens=300, window=20, memory_mb=100)

    assert window == whole
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_a_resumed_job_writes_what_an_uninterrupted_one_does(tmp_path: Path, windows: int) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40, bad=(3, 25))
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    whole.mkdir()
    halves.mkdir()
    expected = run_batch(source, whole / "out.jsonl", window=10, cache_tokens=300)

    with pytest.raises(KeyboardInterrupt):
        run_batch(
            source,
            halves / "out.jsonl",
            window=10,
            cache_tokens=300,
            on_progress=Interrupt(windows),
        )
    assert not (halves / "out.jsonl").exists()
    written: list[int] = []
    summary = run_batch(
        source,
        halves / "out.jsonl",
        window=10,
        cache_tokens=300,
        resume=True,
        on_progress=lambda stage, done, _: written.append(done) if stage == "writing" else None,
    )

    assert summary == expected
    assert content(halves) == content(whole)
    assert len(written) == 4 - windows


def test_resuming_without_an_interrupted_job_begins_one(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 8)

    assert run_batch(source, tmp_path / "out.jsonl", window=4, resume=True).requests == 8


def test_a_job_without_resume_begins_anew_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, tmp_path / "out.jsonl", window=10, on_progress=Interrupt(2))

    summary = run_batch(source, tmp_path / "out.jsonl", window=10)

    assert summary.requests == 40
    assert sorted(content(tmp_path)) == sorted(("in.jsonl", *FILES))


@pytest.mark.parametrize("change", ["input", "settings", "window"])
def test_another_job_is_not_resumed(tmp_path: Path, change: str) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, tmp_path / "out.jsonl", window=10, on_progress=Interrupt(2))
    if change == "input":
        write_requests(source, 41)

    with pytest.raises(RequestError, match="without --resume"):
        run_batch(
            source,
            tmp_path / "out.jsonl",
            window=20 if change == "window" else 10,
            settings=Settings(
                ordering=OrderingSettings(keep_last=1 if change == "settings" else 0)
            ),
            resume=True,
        )


def test_a_broken_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 4)
    for text in ("{", "[]", "{}"):
        (tmp_path / ".out.jsonl.checkpoint").write_text(text)
        with pytest.raises(RequestError, match=r"cannot read .*delete it"):
            run_batch(source, tmp_path / "out.jsonl", resume=True)


@pytest.mark.parametrize("edit", [(b",[", b",[-"), (b",[[", b",[[9")])
def test_a_checkpoint_that_was_edited_is_one_sentence(
    tmp_path: Path, edit: tuple[bytes, bytes]
) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40)
    checkpoint = tmp_path / ".out.jsonl.checkpoint"
    with pytest.raises(KeyboardInterrupt):
        run_batch(source, tmp_path / "out.jsonl", window=10, on_progress=Interrupt(2))
    checkpoint.write_bytes(checkpoint.read_bytes().replace(*edit, 1))
    with pytest.raises(RequestError, match=r"cannot read .*delete it"):
        run_batch(source, tmp_path / "out.jsonl", window=10, resume=True)


def test_a_strict_job_reads_on_and_counts_the_rejects_of_all_windows(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 40, bad=(12, 35))

    with pytest.raises(RejectedLinesError, match="malformed lines: 2"):
        run_batch(source, tmp_path / "out.jsonl", window=10, strict=True)

    assert sorted(content(tmp_path)) == ["in.jsonl", "out.rejects.jsonl"]
    assert len(read_lines(tmp_path / "out.rejects.jsonl")) == 2


@pytest.mark.parametrize("bound", [{"window": 0}, {"memory_mb": 0}])
def test_bounds_below_one_are_refused(tmp_path: Path, bound: dict[str, int]) -> None:
    source = write_requests(tmp_path / "in.jsonl", 4)

    with pytest.raises(RequestError, match="must be at least 1, got 0"):
        run_batch(source, tmp_path / "out.jsonl", **bound)  # type: ignore[arg-type]


def test_a_window_ends_at_the_estimate_of_its_memory(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 600)

    summary = run_batch(source, tmp_path / "out.jsonl", memory_mb=1)

    assert summary.windows > 1
    assert summary.requests == 600


def traced_peak(source: Path, corpus: Corpus, *, memory_mb: int) -> int:
    """Return the most bytes that a job had allocated at a time: the same on every machine."""
    gc.collect()
    tracemalloc.start()
    try:
        run_batch(source, source.with_suffix(".out"), corpus=corpus, memory_mb=memory_mb)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_a_window_and_does_not_grow_with_the_file(tmp_path: Path) -> None:
    rng = random.Random(2)
    corpus = Corpus([Document(f"{i} text", id=i) for i in range(40)])
    for document in corpus:
        assert document.key  # computed now: it belongs to the corpus, not to the plan
    peaks = []
    for num in (60, 700, 1_800):  # the first one loads what every job needs
        source = tmp_path / f"{num}.jsonl"
        with source.open("w") as file:
            for i in range(num):
                line = {"id": i, "question": "?", "doc_ids": rng.sample(range(40), 10)}
                file.write(json.dumps(line) + "\n")
        peaks.append(traced_peak(source, corpus, memory_mb=2))

    _, two_windows, six_windows = peaks
    assert six_windows < 2_000_000 + 8_000_000  # working arrays of the clustering
    assert six_windows < 1.25 * two_windows


def test_an_estimate_counts_requests_places_and_documents(tmp_path: Path) -> None:
    source = write_requests(tmp_path / "in.jsonl", 10)
    job = WindowJob(Settings())
    empty: DocumentCatalog = job.catalog

    with source.open("rb") as file, (tmp_path / "rejects").open("wb") as rejects:
        job.read(file, rejects)

    assert empty.size_bytes == 0
    assert job.catalog.size_bytes > 10_000
