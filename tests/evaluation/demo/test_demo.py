"""The demo end to end on the tiny engine, and the parts that it is made of."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from ragboost.config import EngineSettings
from ragboost.evaluation.demo import run_demo
from ragboost.evaluation.demo.answers import answer_table, ask_model
from ragboost.evaluation.demo.comparison import summarize, table
from ragboost.evaluation.demo.replay import MODEL, WorkloadAnswers
from ragboost.evaluation.demo.workload import make_workload, standard_library
from ragboost.evaluation.endpoint import StreamedAnswer
from ragboost.requests.wires.usage import Usage

ROOT = Path(__file__).parents[3]


def test_the_corpus_is_the_documentation_of_this_python() -> None:
    documents = standard_library()
    ids = [document.id for document in documents]
    assert len(ids) == len(set(ids)) > 300
    assert "json.dumps" in ids
    assert all(len(document.text) <= 2_000 for document in documents)


def test_the_workload_is_the_same_for_the_same_seed() -> None:
    documents = standard_library()
    drawn = [
        make_workload(documents, sessions=5, conversations=2, turns=3, k=4, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(turns) for turns in drawn[0].conversations] == [3, 3]
    assert all(len(turn.documents) == 4 for turn in drawn[0].sessions)


def test_the_summary_counts_what_the_engine_reported() -> None:
    def answer(cached_tokens: int, ttft_s: float, documents_dropped: int = 0) -> StreamedAnswer:
        return StreamedAnswer("", Usage(100, cached_tokens), ttft_s, documents_dropped)

    plain = WorkloadAnswers([answer(0, 0.2), answer(50, 0.1)], [])
    boosted = WorkloadAnswers([answer(50, 0.1), answer(75, 0.05, 2)], [])
    result = summarize(plain, boosted)["sessions"]
    assert result["plain"]["hit_rate"] == 0.25
    assert result["boosted"]["prefill_tokens"] == 75
    assert result["boosted"]["documents_deduplicated"] == 2
    assert result["plain"]["ttft_p95_ms"] == 200.0  # the slower of two, not under the median
    assert result["ratio"] == {
        "prefill_tokens": 2.0,
        "hit_rate": 2.5,
        "ttft_p50_ms": 2.0,
        "ttft_p95_ms": 2.0,
    }
    console = Console(file=io.StringIO(), width=100)
    console.print(table("Sessions", result))
    assert "2.50x" in console.file.getvalue()  # type: ignore[attr-defined]


def test_without_pytorch_the_demo_is_simulated_says_so_and_ends_with_a_picture() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(torch=None, transformers=None)\n"
        "sys.argv = ['ragboost', 'demo', '--sessions', '30', '--conversations', '2']\n"
        "from ragboost.cli import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Simulated: the orders are real" in done.stdout
    assert "fewer tokens computed" in done.stderr  # the bar
    assert "TTFT" not in done.stdout
    before, after = done.stdout.split("before")[-1].splitlines()[2].split("│")[1:3]
    assert "A" in before
    assert "[A][B]" in done.stdout
    assert "[A]" not in before + after  # the first prompt finds nothing
    assert done.stdout.rstrip().endswith("ragboost serve --backend http://127.0.0.1:8000")


@pytest.mark.slow
def test_boosted_sessions_and_conversations_hit_more_than_plain_ones() -> None:
    _, result = run_demo(
        sessions=36,
        conversations=2,
        turns=3,
        engine=EngineSettings(model=Path("ragboost-tiny")),
        console=Console(file=io.StringIO()),
    )
    for part in ("sessions", "conversations"):
        plain, boosted = result[part]["plain"], result[part]["boosted"]
        assert plain["requests"] == boosted["requests"]
        assert boosted["hit_rate"] > plain["hit_rate"]
        assert boosted["prefill_tokens"] < plain["prefill_tokens"]
    assert result["conversations"]["boosted"]["documents_deduplicated"] > 0
    assert result["all"]["plain"]["documents_deduplicated"] == 0  # plain is a pure pass-through


def test_the_answers_of_a_model_are_shown_plain_beside_boosted() -> None:
    console = Console(file=io.StringIO(), width=160)
    engine = EngineSettings(model=Path("ragboost-tiny"), served_model_name=MODEL)

    rows = ask_model(engine, console=console)
    console.print(answer_table("Answers", rows))

    assert sum(row.boosted_tokens for row in rows) < sum(row.plain_tokens for row in rows)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Who signed the lease?" in shown
    assert "prefill tokens" in shown


def test_a_failing_step_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "ragboost.toml").write_text("[engine]\nmodle = 'x'\n")
    done = subprocess.run(
        [sys.executable, "-m", "ragboost", "serve", "--embedded"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "engine.modle" in done.stderr
    assert "engine.model" in done.stderr
    assert "Traceback" not in done.stderr
