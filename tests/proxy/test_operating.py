"""Features for operators: keys, the access log, spans."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from ragboost.config import Settings
from ragboost.proxy.app import create_app
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.proxy.routing.test_routing import ask, documents

ROOT = Path(__file__).parents[2]
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
Start = Callable[..., ProxyServer]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/files"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": "Basic good-key"}, 401),
        ({"authorization": "Bearer good-key"}, 200),
        ({"authorization": "bearer other-key"}, 200),
        ({"x-api-key": "good-key"}, 200),
        ({"api-key": "good-key"}, 200),
        ({"api-key": "wrong", "x-api-key": "wrong"}, 401),
    ],
)
def test_clients_must_show_a_key(
    engine: FakeEngine, start_proxy: Start, path: str, headers: dict[str, str], status: int
) -> None:
    proxy = start_proxy(proxy={"api_keys": ["good-key", "other-key"]})
    answer = httpx.post(proxy.url + path, json=CHAT, headers=headers)
    assert answer.status_code == status
    assert len(engine.requests) == (status == 200)
    if status == 401:
        assert answer.json()["error"]["type"] == "authentication_error"
        assert "wrong-key" not in answer.text
    assert httpx.get(f"{proxy.url}/health").status_code == 200


def test_a_browsers_preflight_needs_no_key(engine: FakeEngine, start_proxy: Start) -> None:
    proxy = start_proxy(proxy={"api_keys": ["good-key"], "forwarded_paths": ()})
    engine.misbehave(headers={"access-control-allow-origin": "*"})
    url = proxy.url + "/v1/chat/completions"
    headers = {"origin": "https://chat.example.com", "access-control-request-method": "POST"}
    answer = httpx.options(url, headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert httpx.options(proxy.url + "/sleep", headers=headers).status_code == 403
    assert httpx.request("OPTIONS", url, content=b"{}").status_code == 401  # it has no body
    assert httpx.request("OPTIONS", url, content=iter([b"{}"])).status_code == 401
    assert len(engine.requests) == 1


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "api-key"])
def test_our_keys_stop_here_and_the_backends_key_is_put_in(
    engine: FakeEngine, start_proxy: Start, name: str
) -> None:
    value = "Bearer ours" if name == "authorization" else "ours"
    proxy = start_proxy(proxy={"api_keys": ["ours"]})
    httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT, headers={name: value})
    assert engine.requests[-1].header(name) is None
    proxy = start_proxy(proxy={"api_keys": ["ours"]}, backend={"api_key": "theirs"})
    httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT, headers={name: value})
    assert engine.requests[-1].header("authorization") == "Bearer theirs"
    assert "ours" not in str(engine.requests[-1].headers)


def test_without_keys_the_clients_key_goes_on(engine: FakeEngine, proxy: ProxyServer) -> None:
    headers = {"authorization": "Bearer theirs"}
    httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT, headers=headers)
    assert engine.requests[-1].header("authorization") == "Bearer theirs"


def test_settings_do_not_show_keys() -> None:
    settings = Settings(
        proxy={"api_keys": ["secret-a"]},  # type: ignore[arg-type]
        backend={"api_key": "secret-b"},  # type: ignore[arg-type]
        backends=[{"url": "http://x", "api_key": "secret-c"}],  # type: ignore[arg-type]
    )
    assert "secret-" not in repr(settings)
    assert "secret-" not in str(settings)


def test_others_may_reach_it_only_with_a_key_or_on_request() -> None:
    command = [sys.executable, "-m", "ragboost", "serve", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "proxy.api_keys" in done.stderr
    assert "--insecure" in done.stderr


def test_the_access_log_has_a_line_per_request_without_text_or_keys(
    engine: FakeEngine, start_proxy: Start, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = start_proxy(proxy={"access_log": True})
    with caplog.at_level(logging.INFO, logger="ragboost.access"):
        ask(proxy.url, 1, 2, question="secret question")
        ask(proxy.url, 2, 1)
        httpx.get(f"{proxy.url}/v1/models?key=secret", headers={"authorization": "Bearer secret"})
        lines = access_lines(caplog, engine, 3)
    first, second, other = (json.loads(line) for line in lines)
    assert (first["endpoint"], first["status"], first["outcome"]) == ("chat", 200, "ok")
    assert (first["documents"], first["model"], first["bypass"]) == (2, "m", None)
    assert first["backend"] == engine.url.removeprefix("http://")
    assert second["cached_tokens"] > 100
    assert second["cached_tokens_predicted"] > 100
    assert second["duration_ms"] >= second["first_byte_ms"] > 0
    assert (other["path"], other["endpoint"]) == ("/v1/models", "other")
    assert "secret" not in "".join(lines)
    assert "Document 1" not in "".join(lines)


def access_lines(caplog: pytest.LogCaptureFixture, engine: FakeEngine, num: int) -> list[str]:
    """The lines of the access log, which are written when the client has its answer already."""

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "ragboost.access"]

    eventually(lambda: len(lines()) >= num)
    return lines()


def test_a_refused_request_is_logged_too(
    engine: FakeEngine, start_proxy: Start, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = start_proxy(proxy={"access_log": True, "api_keys": ["k"]})
    with caplog.at_level(logging.INFO, logger="ragboost.access"):
        httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT)
        (text,) = access_lines(caplog, engine, 1)
    line = json.loads(text)
    assert (line["status"], line["outcome"]) == (401, "refused")


class RecordedSpan(trace.NonRecordingSpan):
    """A span that keeps what it is told."""

    def __init__(self, name: str, parent: trace.SpanContext) -> None:
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED)
        trace_id = parent.trace_id or 0xABC
        super().__init__(trace.SpanContext(trace_id, 0x123, is_remote=False, trace_flags=flags))
        self.name = name
        self.attributes: dict[str, Any] = {}
        self.parent = parent
        self.has_ended = False

    def update_name(self, name: str) -> None:
        self.name = name

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self.attributes.update(attributes)

    def end(self, end_time: int | None = None) -> None:
        self.has_ended = True


class RecordingTracer(trace.NoOpTracer):
    def __init__(self) -> None:
        self.spans: list[RecordedSpan] = []

    def start_span(self, name: str, context: Any = None, *args: Any, **kwargs: Any) -> Any:
        parent = trace.get_current_span(context).get_span_context()
        self.spans.append(RecordedSpan(name, parent))
        self.spans[-1].attributes.update(kwargs.get("attributes") or {})
        return self.spans[-1]


def test_a_completion_is_a_span_between_the_client_and_the_backend(
    engine: FakeEngine, start_proxy: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = RecordingTracer()
    monkeypatch.setattr(trace, "get_tracer", lambda *_: tracer)
    proxy = start_proxy(proxy={"tracing": True})
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    body = {**CHAT, "ragboost": {"documents": documents(1, 2)}}
    httpx.post(f"{proxy.url}/v1/chat/completions", json=body, headers=headers)
    httpx.get(f"{proxy.url}/v1/models", headers=headers)
    (span,) = tracer.spans
    eventually(lambda: span.has_ended)
    assert span.name == "chat m"
    assert span.has_ended
    assert format(span.parent.trace_id, "032x") == trace_id
    assert span.attributes["gen_ai.operation.name"] == "chat"
    assert span.attributes["gen_ai.request.model"] == "m"
    assert span.attributes["gen_ai.usage.input_tokens"] > 100
    assert span.attributes["gen_ai.usage.cache_read.input_tokens"] == 0
    assert span.attributes["ragboost.documents"] == 2
    assert engine.requests[0].header("traceparent") == f"00-{trace_id}-{0x123:016x}-01"
    assert engine.requests[1].header("traceparent") == headers["traceparent"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/completions", "text_completion m"),
        ("/v1/messages", "chat m"),
        ("/v1/responses", "chat m"),
        ("/v1/sessions/{id}/chat/completions", "chat m"),
    ],
)
def test_every_api_of_completions_has_a_span(
    start_proxy: Start, monkeypatch: pytest.MonkeyPatch, path: str, name: str
) -> None:
    tracer = RecordingTracer()
    monkeypatch.setattr(trace, "get_tracer", lambda *_: tracer)
    proxy = start_proxy(proxy={"tracing": True})
    session = httpx.post(f"{proxy.url}/v1/sessions", json={}).json()["id"]
    asked = {"prompt": "why?"} if path == "/v1/completions" else {"input": "why?"}
    body = {**CHAT, **asked, "max_tokens": 4}
    answer = httpx.post(proxy.url + path.replace("{id}", session), json=body)
    assert answer.status_code == 200
    eventually(lambda: [span.name for span in tracer.spans if span.has_ended] == [name])


def test_tracing_without_its_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(Exception, match=r'pip install "ragboost-middleware\[otel\]"'):
        create_app(Settings(proxy={"tracing": True}))  # type: ignore[arg-type]
