"""`ragboost doctor`: what a backend lacks, with the way out."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import FakeEngine
from tests.fakes.events import EventPublisher

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


def test_events_at_a_given_address_are_recognised_by_an_event_of_its_own(unused_port: int) -> None:
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


def test_events_with_a_replay_are_fine_if_one_arrives() -> None:
    with FakeEngine(events=True) as engine:
        _, found = doctor("--backend", engine.url)
        assert engine.completions[-1].json["session_id"]
    assert found["KV events"]["status"] == "ok"
    assert "the event of a request arrived" in found["KV events"]["message"]


def test_events_without_a_replay_arrive_and_the_replay_is_advised() -> None:
    with FakeEngine(events=EventPublisher(replay_endpoint=None)) as engine:
        code, found = doctor("--backend", engine.url)
    assert (code, found["KV events"]["status"]) == (0, "advice")
    assert "replay_endpoint" in found["KV events"]["message"]


def test_an_engine_that_connects_to_the_announced_address_is_found_out(unused_port: int) -> None:
    address = f"tcp://127.0.0.1:{unused_port}"
    with FakeEngine(events=EventPublisher(address, is_connecting=True)) as engine:
        code, found = doctor("--backend", engine.url)
    assert (code, found["KV events"]["status"]) == (1, "failed")
    assert f"tcp://*:{unused_port}" in found["KV events"]["fix"]
    assert "hook" in found["KV events"]["fix"]


def test_a_publisher_that_publishes_nothing_is_found_out() -> None:
    events = EventPublisher(replay_endpoint=None, deliver=lambda _seq, _payload: [])
    with FakeEngine(events=events) as engine:
        code, found = doctor("--backend", engine.url)
    assert (code, found["KV events"]["status"]) == (1, "failed")
    assert "no event of a request arrived" in found["KV events"]["message"]


def test_events_without_request_ids_are_named(engine: FakeEngine) -> None:
    def without_ids(seq: int, payload: bytes) -> list[tuple[int, bytes]]:
        ts, events, *rest = msgspec.msgpack.decode(payload)
        for event in events:
            event.pop("session_id", None)
        return [(seq, msgspec.msgpack.encode([ts, events, *rest]))]

    events = EventPublisher(replay_endpoint=None, deliver=without_ids)
    with FakeEngine(events=events) as engine:
        code, found = doctor("--backend", engine.url)
    assert (code, found["KV events"]["status"]) == (0, "advice")
    assert "session_id" in found["KV events"]["fix"]
