"""`ragboost doctor`: what a backend lacks, with the way out."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from aiohttp import web

from ragboost.config import BackendSettings, Settings
from ragboost.proxy.doctor import examine
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.engines import explain_refusal
from tests.fakes import FakeEngine
from tests.fakes.events import EventPublisher
from tests.fakes.proxy import ProxyServer

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


class HostedApi(FakeEngine):
    """A hosted API: none of the routes that engines have."""

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        is_served = request.path.startswith("/v1/")
        return await super()._handle(request) if is_served else web.Response(status=404)


def test_a_hosted_api_gets_no_advice_that_it_cannot_follow() -> None:
    with HostedApi() as api:
        code, found = doctor("--backend", api.url)
        assert max(request.prompt_tokens for request in api.completions) > 1024
    statuses = {check: finding["status"] for check, finding in found.items()}
    assert statuses == dict.fromkeys(
        ("reachable", "engine", "completion", "usage", "prefix cache"), "ok"
    )
    assert "hosted API" in found["engine"]["message"]
    assert code == 0


def test_a_hosted_api_that_cached_nothing_is_no_failure() -> None:
    with HostedApi(capacity_tokens=0) as api:
        code, found = doctor("--backend", api.url)
    assert (code, found["prefix cache"]["status"]) == (0, "advice")
    assert "client marks" in found["prefix cache"]["fix"]


def test_an_api_that_refuses_a_request_is_quoted() -> None:
    class Strict(HostedApi):
        async def _handle(self, request: web.Request) -> web.StreamResponse:
            if request.method == "POST":
                error = {"message": "no such parameter: max_tokens"}
                return web.json_response({"error": error}, status=400)
            return await super()._handle(request)

    with Strict() as api:
        code, found = doctor("--backend", api.url)
    assert (code, found["completion"]["status"]) == (1, "failed")
    assert "returned 400: no such parameter" in found["completion"]["message"]


async def test_a_slow_engine_is_given_its_time_and_then_named(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Backend.ask

    async def slow(backend: Backend, path: str, **options: Any) -> tuple[int, bytes]:
        waits = options["timeout_s"] if options["body"] is None else 0.0
        return await ask(backend, path, **{**options, "timeout_s": waits})

    monkeypatch.setattr(Backend, "ask", slow)
    findings = await examine(Settings(backend=BackendSettings(url=engine.url)))
    found = next(finding for finding in findings if finding.check == "completion")
    assert found.message == "a chat request to fake-model: no answer within 60 s"


def test_a_ragboost_proxy_says_that_it_is_one(proxy: ProxyServer) -> None:
    code, found = doctor("--backend", proxy.url)
    assert (code, found["engine"]["status"]) == (0, "advice")
    assert "this is a RAGBoost proxy" in found["engine"]["message"]
    assert "engine's own address" in found["engine"]["fix"]
    checks = ["reachable", "engine", "completion", "usage", "prefix cache"]
    assert list(found) == checks


def test_a_proxy_that_gets_documents_without_boundaries_says_what_to_do(proxy: ProxyServer) -> None:
    one, two = "This is one. " * 30, "That is another. " * 30
    text = f"Context information is below.\n-----\n{one}\n\n{two}\n-----\nQuery: which?"
    messages = [{"role": "user", "content": text}]
    for _ in range(2):
        url = f"{proxy.url}/v1/chat/completions"
        httpx.post(url, json={"model": "fake-model", "messages": messages}).raise_for_status()
    _, found = doctor("--backend", proxy.url)
    assert found["documents"]["status"] == "advice"
    assert found["documents"]["message"].startswith("2 requests")
    assert "wrap the retriever" in found["documents"]["fix"]


@pytest.mark.parametrize(
    ("block_size", "unit", "status"),
    [(784, None, "advice"), (784, 32, None), (8320, None, "advice"), (16, None, None)],
)
def test_a_block_longer_than_shared_prefixes_is_named(
    block_size: int, unit: int | None, status: str | None
) -> None:
    class Hybrid(FakeEngine):
        def _describe(self, path: str) -> web.Response:
            answer = super()._describe(path)
            if path == "/metrics" and unit is not None:
                answer.text = (answer.text or "").replace("{", f'{{prefix_match_unit="{unit}",')
            return answer

    with Hybrid(block_size=block_size, capacity_tokens=100_000) as engine:
        code, found = doctor("--backend", engine.url)
    size = found.get("block size", {"status": None})
    assert (code, size["status"]) == (0, status)
    if status is not None:
        assert f"a block has {block_size} tokens" in size["message"]
    assert found["prefix cache"]["status"] == ("advice" if block_size > 5000 else "ok")


@pytest.mark.parametrize(
    ("facts", "status", "message"),
    [
        ({"is_possible": True, "default": "exact"}, "ok", "on: "),
        (
            {"is_possible": False, "refusal": "lora"},
            "advice",
            "refused: the engine serves LoRA adapters",
        ),
        (
            {"is_possible": False, "refusal": "self_test: wrong rows"},
            "advice",
            "refused: its test at the start failed: wrong rows",
        ),
        (
            {"is_possible": False, "refusal": "the engine has not checked itself yet"},
            "advice",
            "refused: the engine has not checked itself yet",
        ),
        (None, "ok", "off; `python -m ragboost.chunk_cache`"),
    ],
)
def test_chunk_reuse_is_on_off_or_refused_with_a_sentence(
    facts: dict[str, Any] | None, status: str, message: str
) -> None:
    class Vllm(FakeEngine):
        def _describe(self, path: str) -> web.Response:
            if path == "/chunk_reuse" and facts is not None:
                return web.json_response(facts)
            return super()._describe(path)

        async def _handle(self, request: web.Request) -> web.StreamResponse:
            if request.path == "/v1/models":
                return web.json_response({"data": [{"id": "m", "owned_by": "vllm"}]})
            return await super()._handle(request)

    with Vllm() as engine:
        _, found = doctor("--backend", engine.url)
    assert found["chunk reuse"]["status"] == status
    assert found["chunk reuse"]["message"].startswith(message)


def test_every_reason_of_the_engines_has_a_sentence() -> None:
    for engine in ("vllm", "sglang"):
        source = (ROOT / f"ragboost/chunk_cache/{engine}/compat.py").read_text()
        table = source.partition("def refusal(")[2].partition("def request_refusal(")[0]
        codes = re.findall(r'^        "(\w+)":|return "(\w+)"|else "(\w+)"', table, re.MULTILINE)
        for code in filter(None, sum(codes, ())):
            assert explain_refusal(code) != code, f"{engine}: {code}"
