"""Bodies that no client needs: they harm neither other users nor the monitoring."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from ragboost.booster import Booster
from ragboost.proxy.pipeline import BoostPipeline
from tests.eventually import DEADLINE_S, eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses")
CHAT = PATHS[0]
QUESTION = [{"role": "user", "content": "why?"}]
OURS = {"documents": ["one", "two"]}
Start = Callable[..., ProxyServer]


def is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def lines_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The proxy's own lines, without those of the test's client."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("ragboost")]


def nested(depth: int, field: str) -> bytes:
    body = {"model": "m", "messages": QUESTION, "prompt": "why?", "input": "why?"}
    body.pop(field, None)
    deep = b"[" * depth + b"]" * depth
    return json.dumps(body).encode()[:-1] + b',"%b":%b}' % (field.encode(), deep)


@pytest.mark.parametrize("depth", [129, 900, 1500, 100_000])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("field", ["messages", "input", "documents", "metadata"])
def test_a_deeply_nested_body_is_forwarded_unchanged(
    client: httpx.Client, engine: FakeEngine, path: str, field: str, depth: int
) -> None:
    body = nested(depth, field)
    answer = client.post(path, content=body)
    assert engine.requests[-1].body == body
    assert answer.headers["x-ragboost-bypass"] == "malformed_body"


@pytest.mark.parametrize(
    "body",
    [
        b'{"messages": [%b]}' % b",".join([b'{"role": "user", "content": "a"}'] * 10_001),
        b'{"messages": [], "input": [%b]}' % b",".join([b"1"] * 10_001),
        b'{"metadata": [%b]}' % b",".join([b"[]"] * 250_000),
    ],
)
def test_a_body_beyond_our_parser_is_forwarded_unchanged(
    client: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    answer = client.post(CHAT, content=body)
    assert engine.requests[-1].body == body
    assert answer.headers["x-ragboost-bypass"] == "malformed_body"


@pytest.mark.parametrize(
    "body",
    [
        nested(129, "ragboost"),
        nested(100_000, "ragboost"),
        b'{"ragboost": {"documents": ["a"]}, "metadata": [%b]}' % b",".join([b"[]"] * 250_000),
        b'{"ragboost": {"documents": ["a"]}, "messages": [',
        b'{"ragboost": {"documents": ["a"]}, "user": "\xff"}',
    ],
)
def test_a_body_beyond_our_parser_whose_documents_no_backend_would_read_is_refused(
    client: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    answer = client.post(CHAT, content=body)
    assert (answer.status_code, engine.requests) == (400, [])
    assert "`ragboost` object" in answer.json()["error"]["message"]


def test_a_request_with_an_integer_of_thousands_of_digits_is_the_backends_affair(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = json.dumps({"messages": QUESTION}).encode()[:-1] + b',"seed":%b}' % (b"9" * 5000)
    answer = client.post(CHAT, content=body)
    assert answer.headers["x-ragboost-bypass"] == "malformed_body"
    assert engine.requests[-1].body == body


@pytest.mark.parametrize("depth", [129, 1500, 100_000])
def test_the_session_api_refuses_a_deeply_nested_body(client: httpx.Client, depth: int) -> None:
    session = client.post("/v1/sessions", json={}).json()["id"]
    paths = ("/v1/sessions", f"/v1/sessions/{session}/chat/completions")
    answers = [client.post(path, content=nested(depth, "metadata")) for path in paths]
    assert [answer.status_code for answer in answers] == [400, 400]


def test_more_documents_than_allowed_are_a_400_that_names_the_setting(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(formats={"max_documents": 3})
    with httpx.Client(base_url=proxy.url) as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        documents = [f"text {at}" for at in range(4)]
        turn = {"query": "why?", "documents": documents}
        for path, body, param in (
            (CHAT, {"messages": QUESTION, "ragboost": {"documents": documents}}, "ragboost."),
            (PATHS[1], {"prompt": "why?", "ragboost": {"documents": documents}}, "ragboost."),
            (f"/v1/sessions/{session}/chat/completions", turn, ""),
        ):
            answer = client.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (
                400,
                param + "documents",
            )
            assert "formats.max_documents" in answer.json()["error"]["message"]
        assert engine.requests == []
        turn["documents"] = documents[:3]
        answer = client.post(f"/v1/sessions/{session}/chat/completions", json=turn)
        assert answer.headers["x-ragboost-documents"] == "3"


def _in_text(texts: list[str]) -> list[str]:
    tags = "\n".join(f"<document>{text}</document>" for text in texts)
    listed = "\n\n".join(f"[Doc_{at}] {text}" for at, text in enumerate(texts))
    numbered = f"Answer.\n\n{listed}\n\nQuestion: why?"
    return [f"<documents>\n{tags}\n</documents>\n\nwhy?", numbered]


def test_more_documents_than_allowed_in_other_shapes_are_forwarded_unchanged(
    engine: FakeEngine, start_proxy: Start
) -> None:
    proxy = start_proxy(formats={"max_documents": 3})
    texts = [
        f"The text of document {at}, which is long enough for a list of documents."
        for at in range(4)
    ]
    blocks = [{"type": "document", "source": {"type": "text", "data": text}} for text in texts]
    bodies: list[dict[str, Any]] = [
        {"messages": QUESTION, "documents": texts},
        {"messages": QUESTION, "chat_template_kwargs": {"documents": texts}},
        *({"messages": [{"role": "user", "content": text}]} for text in _in_text(texts)),
        {"messages": [{"role": "user", "content": [*blocks, {"type": "text", "text": "why?"}]}]},
        {"messages": [{"role": "tool", "content": json.dumps([{"text": t} for t in texts])}]},
    ]
    for body in bodies:
        raw = json.dumps(body, indent=1).encode()
        answer = httpx.post(proxy.url + CHAT, content=raw)
        assert answer.headers["x-ragboost-bypass"] == "too_many_documents", body
        assert engine.requests[-1].body == raw


def test_a_text_with_absurdly_many_documents_is_not_read_to_its_end(
    client: httpx.Client, engine: FakeEngine
) -> None:
    content = "<document>d</document>\n" * 100_001
    answer = client.post("/v1/messages", json={"system": content, "messages": []})
    assert answer.headers["x-ragboost-bypass"] == "too_many_documents"


def test_a_text_of_line_breaks_is_not_searched(client: httpx.Client, engine: FakeEngine) -> None:
    for content in ("\n" * 300_000, [{"type": "text", "text": "\n" * 150_000}] * 2):
        body = {"model": "m", "messages": [{"role": "user", "content": content}]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.headers["x-ragboost-bypass"] == "unknown_shape"


def test_others_are_boosted_while_a_large_body_is_encoded(
    proxy: ProxyServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tenant's lock is held for the index alone."""
    encode, may_go, is_waiting = BoostPipeline._encode, threading.Event(), threading.Event()

    def wait(*args: Any, **kwargs: Any) -> Any:
        if not is_on_event_loop():
            is_waiting.set()
            assert may_go.wait(DEADLINE_S)
        return encode(*args, **kwargs)

    monkeypatch.setattr(BoostPipeline, "_encode", wait)
    large = {"messages": QUESTION, "ragboost": {"documents": ["x" * 200_000, "y" * 200_000]}}
    answers: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: answers.append(httpx.post(proxy.url + CHAT, json=large))
    )
    asking.start()
    eventually(is_waiting.is_set)
    small = httpx.post(proxy.url + CHAT, json={"messages": QUESTION, "ragboost": OURS})
    assert small.headers["x-ragboost-documents"] == "2"
    assert answers == []
    may_go.set()
    asking.join(DEADLINE_S)
    assert answers[0].headers["x-ragboost-documents"] == "2"


def test_many_documents_are_boosted_in_a_thread(
    proxy: ProxyServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    boost, in_loop = Booster.boost, []

    def record(*args: Any, **kwargs: Any) -> Any:
        in_loop.append(is_on_event_loop())
        return boost(*args, **kwargs)

    monkeypatch.setattr(Booster, "boost", record)
    for num in (1001, 10):
        ours = {"documents": [f"{at}" for at in range(num)]}
        httpx.post(proxy.url + CHAT, json={"messages": QUESTION, "ragboost": ours})
    assert in_loop == [False, True]


@pytest.mark.parametrize(
    "name",
    ["m\ud800", "m\nEVIL 1", "m\x1b[31m", "m\u009b31m", "m\u2028", "x" * 300, "x" * 2**20],
)
def test_no_name_of_a_model_breaks_the_monitoring_or_fills_it(
    engine: FakeEngine,
    start_proxy: Start,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    proxy = start_proxy(proxy={"access_log": True})
    with caplog.at_level(logging.INFO), httpx.Client(base_url=proxy.url) as client:
        for field in ("model", "cache_salt"):
            body = {"model": "m", field: name, "messages": QUESTION, "ragboost": OURS}
            raw = json.dumps(body).encode()
            assert client.post(CHAT, content=raw).headers["x-ragboost-documents"] == "2"
            assert engine.requests[-1].json[field] == name
        metrics, data = client.get("/metrics"), client.get("/dashboard/data")
        eventually(lambda: sum(r.name == "ragboost.access" for r in caplog.records), equals=2)
    assert (metrics.status_code, data.status_code) == (200, 200)
    assert len(metrics.content) < 100_000
    assert len(data.content) < 100_000
    assert 'model="sha256:' in metrics.text
    assert "EVIL" not in metrics.text
    lines = lines_of(caplog)
    assert all(line.isprintable() and len(line) < 1000 for line in lines)


def test_two_long_names_that_begin_alike_have_two_indexes(
    client: httpx.Client, engine: FakeEngine
) -> None:
    documents = [f"Document {at} " + "has some text. " * 40 for at in range(3)]
    for salt, order in (("a", 1), ("b", -1)):
        ours = {"documents": documents[::order]}
        body = {"model": "m", "cache_salt": "x" * 2000 + salt, "messages": QUESTION}
        answer = client.post(CHAT, json={**body, "ragboost": ours})
        assert answer.headers["x-ragboost-cached-tokens-predicted"] == "0"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/a%0d%0aINFO%20forged",
        "/v1/models/a%1b[2Jb",
        "/v1/models/%c2%9b31m",
        "/v1/models/" + "x" * 20_000,
    ],
)
def test_a_path_cannot_write_into_the_log(
    unused_port: int, start_proxy: Start, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    backend = {"url": f"http://127.0.0.1:{unused_port}"}
    proxy = start_proxy(proxy={"access_log": True}, backend=backend)
    with caplog.at_level(logging.INFO):
        answer = httpx.get(proxy.url + path, headers={"x-request-id": b"id\xa0" * 300})
        assert answer.status_code == 502
        eventually(lambda: sum(r.name == "ragboost.access" for r in caplog.records), equals=1)
    lines = lines_of(caplog)
    assert any("/v1/models/" in line for line in lines)
    assert all(line.isprintable() and len(line) < 3000 for line in lines)


def test_the_access_log_has_no_ids_of_sessions(
    engine: FakeEngine, start_proxy: Start, caplog: pytest.LogCaptureFixture
) -> None:
    proxy = start_proxy(proxy={"access_log": True})
    with caplog.at_level(logging.INFO), httpx.Client(base_url=proxy.url) as client:
        session = client.post("/v1/sessions", json={}).json()["id"]
        path = f"/v1/sessions/{session}"
        client.post(f"{path}/chat/completions", json={"query": "why?"})
        client.get(f"/v1/sessions?after={session}")
        client.get(path)
        client.delete(path)
        client.get(path)
        client.get(f"/v1/responses/{session}/input_items")
        eventually(lambda: sum(r.name == "ragboost.access" for r in caplog.records), equals=7)
    assert session not in "".join(lines_of(caplog))
    assert "/v1/sessions/*/chat/completions" in "".join(lines_of(caplog))
