"""The command, against real servers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ragboost.cli import app
from ragboost.errors import RagBoostError
from tests.fakes import FakeEngine
from tests.fakes.scripted import Reply, ScriptedEndpoint

ROWS = [
    {
        "question": "which one?",
        "documents": [{"id": name, "text": f"fact {name}\n" + "word " * 60} for name in order],
        "answers": [f"fact {order[0]}"],
    }
    for order in ("abcd", "dcba", "bcda", "cabd", "dbac", "acdb")
]


def first_document(body: dict[str, Any]) -> str:
    """Answer like a model that believes the first document."""
    return str(body["messages"][-1]["content"]).split("\n")[1]


def follow_hint(body: dict[str, Any]) -> str:
    """Answer like a model that reads the order hint."""
    prompt = str(body["messages"][-1]["content"])
    _, _, hint = prompt.partition("most relevant first: [Doc_")
    return f"fact {hint[0]}" if hint else first_document(body)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS * 10))
    return path


def run(questions: Path, url: str, *arguments: str, stdin: str = "") -> Result:
    command = ["eval-order", str(questions), "--endpoint", url, "--model", "m", *arguments]
    return CliRunner().invoke(app, command, input=stdin)


def test_answers_are_never_written_into_the_questions(questions: Path) -> None:
    before = questions.read_bytes()
    done = run(questions, "http://127.0.0.1:1", "--answers", str(questions))

    assert "is an input of the job" in str(done.exception)
    assert questions.read_bytes() == before


def test_a_model_that_believes_the_first_document_loses_and_keep_last_does_not_help(
    questions: Path,
) -> None:
    with ScriptedEndpoint(first_document) as server:
        done = run(questions, server.url, "--yes", "--json")
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)

    arms = result["arms"]
    assert arms["retriever"]["scores"]["em"]["mean"] == 1.0
    assert arms["boosted"]["scores"]["em"]["mean"] < 0.5
    assert arms["boosted"]["predicted_hit_rate"] > arms["retriever"]["predicted_hit_rate"]
    assert result["conclusion"].startswith("boosted lost")
    assert "ordering.enabled = false" in result["conclusion"]
    assert len(server.bodies) == len({json.dumps(body) for body in server.bodies})


def test_a_model_that_reads_hints_loses_nothing(questions: Path) -> None:
    with ScriptedEndpoint(follow_hint) as server:
        done = run(questions, server.url, "--yes", "--system", "")

    assert done.exit_code == 0, done.output
    assert "boosted: no loss larger than" in done.stdout
    assert "boosted-no-hints" in done.stdout
    assert "60 of 60 questions answered in every arm" in done.stdout


def test_nothing_is_asked_before_the_cost_is_accepted(questions: Path, engine: FakeEngine) -> None:
    done = run(questions, engine.url, stdin="n\n")

    assert done.exit_code == 1
    assert "distinct prompts: about" in done.output
    assert not engine.completions


def test_a_run_that_failed_in_part_says_so_and_is_completed_by_the_next(questions: Path) -> None:
    broken = True

    def reply(body: dict[str, Any]) -> str | Reply:
        shown = re.findall(r"fact (.)\n", body["messages"][-1]["content"])
        is_bad = broken and "".join(shown) == "dcba"
        return Reply(400) if is_bad else first_document(body)

    arms = ["--arm", "boosted", "--yes", "--json"]
    with ScriptedEndpoint(reply) as server:
        first = run(questions, server.url, *arms)
        broken = False
        asked = len(server.bodies)
        second = run(questions, server.url, *arms)

    assert "requests that failed: 1" in first.stderr
    assert json.loads(first.stdout)["compared"] == 50
    assert json.loads(second.stdout)["compared"] == 60
    assert len(server.bodies) == asked + 1


def test_conversations_are_measured_with_their_own_arms(tmp_path: Path, engine: FakeEngine) -> None:
    path = tmp_path / "turns.jsonl"
    rows = [{**row, "conversation_id": number // 2} for number, row in enumerate(ROWS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    done = run(path, engine.url, "--yes", "--json", "--arm", "all")

    assert done.exit_code == 0, done.output
    assert {"dedup", "dedup-no-hints"} <= json.loads(done.stdout)["arms"].keys()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--arm", "fastest"], "--arm must be one of"),
        (["--metric", "bleu"], "--metric must be one of em, f1, contains, got 'bleu'"),
        (["--body", "[]"], "--body must be a JSON object"),
        (["--body", "{"], "--body must be a JSON object"),
        (["--key-env", "A_KEY"], "the API key in A_KEY has characters that no header can carry"),
    ],
)
def test_bad_options_are_named(
    questions: Path,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    problem: str,
) -> None:
    monkeypatch.setenv("A_KEY", "sk-\udcff")
    done = run(questions, engine.url, "--yes", *arguments)

    assert isinstance(done.exception, RagBoostError)
    assert problem in str(done.exception)
    assert not engine.completions


def test_no_number_of_the_table_is_cut_off(questions: Path) -> None:
    with ScriptedEndpoint(first_document) as server:
        done = run(questions, server.url, "--yes")
    assert "boosted-no-hints" in done.stdout
    assert "…" not in done.stdout


def test_an_answer_in_parts_is_their_text(questions: Path) -> None:
    def answer(body: dict[str, Any]) -> Reply:
        parts = [{"type": "thinking"}, {"type": "text", "text": first_document(body)}]
        completion = {"choices": [{"message": {"role": "assistant", "content": parts}}]}
        return Reply(200, {}, json.dumps(completion).encode())

    with ScriptedEndpoint(answer) as server:
        done = run(questions, server.url, "--yes", "--json", "--arm", "retriever")
    with ScriptedEndpoint(first_document) as server:
        arguments = ["--yes", "--json", "--arm", "retriever", "--answers", f"{questions}.2"]
        plain = run(questions, server.url, *arguments)
    assert json.loads(done.stdout)["arms"] == json.loads(plain.stdout)["arms"]


def test_a_negative_seed_is_refused_as_an_option(questions: Path, engine: FakeEngine) -> None:
    done = run(questions, engine.url, "--yes", "--seed", "-1")
    assert done.exit_code == 2
    assert "--seed" in done.output


def test_the_users_own_settings_are_measured(
    questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAGBOOST_ORDERING__ENABLED", "false")
    with ScriptedEndpoint(first_document) as server:
        done = run(questions, server.url, "--yes", "--json", "--arm", "boosted")

    assert json.loads(done.stdout)["arms"]["boosted"]["changed"] == 0


def test_without_a_terminal_the_flag_that_answers_is_named(questions: Path) -> None:
    with FakeEngine() as engine:
        done = run(questions, engine.url)
        assert "--yes" in str(done.exception)
        assert engine.requests == []
