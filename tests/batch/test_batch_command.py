"""`ragboost batch` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ragboost.cli import app

ROOT = Path(__file__).parents[2]
REQUESTS = [
    {"id": i, "question": "?", "doc_ids": names}
    for i, names in enumerate((["a", "b"], ["c"], ["b", "a"]))
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "corpus.jsonl").write_text(
        "".join(json.dumps({"id": name, "text": name * 400}) + "\n" for name in "abc"),
        encoding="utf-8",
    )
    source = tmp_path / "in.jsonl"
    lines = "".join(json.dumps(request) + "\n" for request in REQUESTS)
    source.write_text(lines + "{broken\n", encoding="utf-8")
    return source


def ragboost(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ragboost", "batch", str(source), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_summary_is_json_on_request_and_a_warning_counts_the_rejects(source: Path) -> None:
    folder = source.parent
    done = ragboost(
        source,
        *("-o", str(folder / "out.jsonl"), "--corpus", str(folder / "corpus.jsonl")),
        *("--cache-tokens", "1000", "--json"),
    )

    assert done.returncode == 0
    assert "warning: malformed lines: 1, see" in done.stderr
    assert "out.rejects.jsonl; line 4: not JSON" in done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert (summary["requests"], summary["rejected"]) == (3, 1)
    assert summary["before"]["hit_rate"] == 0
    assert summary["after"]["hit_rate"] > 0.3
    assert summary["cache_tokens"] == 1000


def test_summary_is_a_table_and_progress_is_shown_on_request(source: Path) -> None:
    folder = source.parent
    done = ragboost(
        source,
        *("-o", str(folder / "out.jsonl"), "--corpus", str(folder / "corpus.jsonl")),
        "--progress",
    )

    assert done.returncode == 0
    assert "hit rate" in done.stdout
    assert "3 requests written" in done.stdout
    assert all(stage in done.stderr for stage in ("reading", "planning", "writing"))


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["-o", "{folder}/out.jsonl", "--strict"], "malformed lines: 4, see"),
        (["-o", "{folder}/in.jsonl"], "is an input of the job"),
        (["-o", "."], "cannot write .: not a regular file"),
        (["-o", "{folder}/out.jsonl", "--corpus", "{folder}/none.jsonl"], "cannot read"),
        (["-o", "{folder}/corpus.jsonl", "--corpus", "{folder}/corpus.jsonl"], "is an input"),
        (["-o", "{folder}/out.jsonl", "--cache-tokens", "-1"], "--cache-tokens"),
        ([], "--output"),
    ],
)
def test_bad_flags_files_and_strict_rejects_are_exit_code_2(
    source: Path, arguments: list[str], sentence: str
) -> None:
    done = ragboost(source, *(a.format(folder=source.parent) for a in arguments))

    assert done.returncode == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_of_malformed_lines_fails_and_leaves_no_empty_output(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"question": "q", "documents": "text"}\n')
    done = ragboost(tmp_path / "in.jsonl", "-o", str(tmp_path / "out.jsonl"))

    assert done.returncode == 2
    assert "out.rejects.jsonl; line 1: documents must be a list" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.rejects.jsonl"]


def test_an_empty_file_is_named_as_one(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("")
    done = ragboost(tmp_path / "in.jsonl", "-o", str(tmp_path / "out.jsonl"))

    assert done.returncode == 0
    assert "no requests: the output is empty" in done.stderr


def test_a_file_that_needs_too_much_memory_is_refused_with_the_way_out(tmp_path: Path) -> None:
    lines = [json.dumps({"id": i, "question": "?", "documents": ["a" * 4000]}) for i in range(300)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    done = ragboost(tmp_path / "in.jsonl", "-o", str(tmp_path / "out.jsonl"), "--memory", "1")

    assert done.returncode == 2
    assert "in.jsonl needs more than 1 MB of memory from line " in done.stderr
    assert "boosted(dataset, window=N)" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl"]


def test_an_interrupted_job_exits_as_shells_expect_and_leaves_nothing(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    files = sorted(path.name for path in source.parent.iterdir())
    monkeypatch.setattr("ragboost.batch.job.plan_file", interrupted)
    corpus = ["--corpus", str(source.parent / "corpus.jsonl")]
    with pytest.raises(SystemExit) as stopped:
        app(["batch", str(source), "-o", str(source.parent / "out.jsonl"), *corpus])

    assert stopped.value.code == 130
    assert sorted(path.name for path in source.parent.iterdir()) == files


def joined(number: int) -> dict[str, Any]:
    text = "Use the following context.\n\n" + "\n\n".join(
        f"Paragraph {n} of request {number} has no mark at its end. " * 8 for n in range(4)
    )
    body = {"model": "m", "messages": [{"role": "user", "content": f"{text}\n\nWhy?"}]}
    return {
        "custom_id": str(number),
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": body,
    }


def test_a_batch_without_documents_is_written_unchanged_with_a_word_why(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(joined(n)) + "\n" for n in range(40)))

    done = ragboost(source, "-o", str(output), "--json")

    assert done.returncode == 0
    assert output.read_bytes() == source.read_bytes()
    assert "warning: documents found in 0 of 40 requests" in done.stderr
    assert "40 unmarked_documents (put each document into a tag" in done.stderr
    assert json.loads(done.stdout)["detections"] == {"unmarked_documents": 40}


def test_a_batch_says_of_numbers_that_answers_may_cite_that_they_stay(tmp_path: Path) -> None:
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    line = joined(1)
    listed = "\n".join(f'<source id="{n}">{"The lease says so. " * 9}</source>' for n in (1, 2))
    line["body"]["messages"][0]["content"] = f"Cite sources as [id].\n{listed}\n\nWhy?"
    source.write_text(json.dumps(line) + "\n")

    done = ragboost(source, "-o", str(output), "--json")

    assert output.read_bytes() == source.read_bytes()
    assert "1 numbered_documents (leave out the numbers" in done.stderr


def test_a_batch_says_in_how_many_requests_documents_were_found(source: Path) -> None:
    folder = source.parent
    with source.open("a") as file:
        file.write(json.dumps(joined(9)) + "\n")
    corpus = ("--corpus", str(folder / "corpus.jsonl"))
    done = ragboost(source, "-o", str(folder / "out.jsonl"), *corpus)
    assert "documents found in 3 of 4 requests" in done.stdout
    assert "1 unmarked_documents" in done.stdout
