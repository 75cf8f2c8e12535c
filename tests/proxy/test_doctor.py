"""`ragboost doctor`: what a backend lacks, with the way out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEngine

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "ragboost", "doctor")


def doctor(*arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by check."""
    done = subprocess.run(
        [*COMMAND, "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
    findings = json.loads(done.stdout)["findings"]
    return done.returncode, {finding["check"]: finding for finding in findings}


def test_a_good_backend_has_advice_at_most(engine: FakeEngine) -> None:
    code, found = doctor("--backend", engine.url)
    assert code == 0
    assert {check: finding["status"] for check, finding in found.items()} == {
        "reachable": "ok",
        "completion": "ok",
        "usage": "ok",
        "prefix cache": "ok",
        "documents": "ok",
        "tokenizer": "ok",
        "KV events": "advice",
    }
    assert found["KV events"]["fix"]


def test_a_backend_that_is_not_there_is_a_failure_with_a_way_out(unused_port: int) -> None:
    code, found = doctor("--backend", f"http://127.0.0.1:{unused_port}")
    assert (code, list(found), found["reachable"]["status"]) == (1, ["reachable"], "failed")
    assert "--backend" in found["reachable"]["fix"]


@pytest.mark.parametrize("status", [401, 500])
def test_a_backend_that_refuses_is_a_failure(engine: FakeEngine, status: int) -> None:
    engine.misbehave(status=status)
    code, found = doctor("--backend", engine.url)
    if "completion" in found:
        assert found["completion"]["status"] == "failed"
    assert code == 1


def test_without_a_prefix_cache_it_says_so() -> None:
    with FakeEngine(capacity_tokens=0) as engine:
        code, found = doctor("--backend", engine.url)
    assert (code, found["prefix cache"]["status"]) == (1, "failed")


def test_a_socket_of_cache_events_is_recognised_by_its_greeting(unused_port: int) -> None:
    with FakeEngine(events=True) as engine:
        assert engine.events is not None
        _, found = doctor("--backend", engine.url, "--kv-events", engine.events.endpoint)
        assert found["KV events"]["status"] == "ok"
        address = f"tcp://127.0.0.1:{unused_port}"
        code, found = doctor("--backend", engine.url, "--kv-events", address)
        assert (code, found["KV events"]["status"]) == (1, "failed")


def test_every_backend_is_examined_and_text_names_the_fix(engine: FakeEngine) -> None:
    with FakeEngine() as other:
        done = subprocess.run(
            [*COMMAND, "--backend", engine.url, "--backend", other.url],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0
    assert done.stdout.count("reachable: ") == 2
    assert "advice" in done.stdout


def silent_vllm() -> bytes:
    """The answer of a vLLM that reports no cached tokens, to every question."""
    model = {"id": "m", "owned_by": "vllm"}
    usage = {"prompt_tokens": 100, "prompt_tokens_details": None}
    return json.dumps({"data": [model], "choices": [], "usage": usage}).encode()


@pytest.mark.parametrize(
    ("capacity", "status", "fix"),
    [(4096, "ok", ""), (0, "failed", "--no-enable-prefix-caching"), (None, "advice", "usage")],
)
def test_where_usage_is_silent_the_engine_is_asked_for_its_settings(
    capacity: int | None, status: str, fix: str
) -> None:
    with FakeEngine(capacity_tokens=capacity) as engine:
        engine.misbehave(status=200, body=silent_vllm())
        code, found = doctor("--backend", engine.url)
    assert "--enable-prompt-tokens-details" in found["usage"]["fix"]
    assert found["prefix cache"]["status"] == status
    assert fix in found["prefix cache"]["fix"]
    assert code == (status == "failed")


def test_events_with_a_replay_are_fine(engine: FakeEngine) -> None:
    with FakeEngine(events=True) as engine:
        _, found = doctor("--backend", engine.url)
    assert found["KV events"]["status"] == "ok"
