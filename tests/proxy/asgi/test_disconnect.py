"""A client that leaves takes its work with it, whenever it leaves."""

import asyncio
import json
import socket
from collections.abc import Callable

import httpx
import pytest
from starlette.types import Message

from ragboost.proxy.app import create_app
from ragboost.proxy.pipeline import BoostPipeline
from tests.eventually import eventually, eventually_async
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.metrics import read_metric
from tests.sockets import open_request

REQUESTS = "ragboost_requests_total"
URL = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_before_the_answer_begins_cancels_the_backend(
    engine: FakeEngine, proxy: ProxyServer, stream: bool
) -> None:
    engine.misbehave(hold=True)
    connection = open_request(proxy.port, URL, {**CHAT, "stream": stream})
    eventually(lambda: engine.num_active, equals=1)
    connection.close()
    eventually(lambda: engine.num_cancelled, equals=1)
    eventually(lambda: read_metric(proxy.url, REQUESTS, outcome="client_left"), equals=1)


def test_leaving_in_the_middle_of_a_stream_cancels_the_backend(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    engine.misbehave(hold_after_chunks=1)
    connection = open_request(proxy.port, URL, {**CHAT, "stream": True})
    assert connection.recv(100)
    connection.close()
    eventually(lambda: engine.num_cancelled, equals=1)
    eventually(lambda: read_metric(proxy.url, REQUESTS, outcome="client_left"), equals=1)


def test_leaving_while_sending_never_reaches_the_backend(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    connection = socket.create_connection(("127.0.0.1", proxy.port))
    connection.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
    )
    connection.close()
    eventually(lambda: read_metric(proxy.url, REQUESTS, outcome="client_left"), equals=1)
    assert engine.requests == []


def test_leaving_while_a_large_request_is_boosted_leaves_the_tenant_usable(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    documents = [f"document {i} " + "x" * 60 for i in range(10_000)]
    connection = open_request(proxy.port, URL, {**CHAT, "ragboost": {"documents": documents}})
    connection.close()
    body = {**CHAT, "ragboost": {"documents": documents[:3]}}
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-ragboost-documents"] == "3"


async def test_a_server_that_only_says_so_when_it_is_asked_cancels_the_backend_too(
    engine: FakeEngine,
) -> None:
    """Such as uvicorn without the guard, in which Ray Serve runs the app."""
    app, has_left = create_app(proxy_settings(engine.url)), asyncio.Event()
    messages: list[Message] = [{"type": "http.request", "body": json.dumps(CHAT).encode()}]

    async def receive() -> Message:
        if not messages:
            await has_left.wait()
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(_message: Message) -> None:
        raise AssertionError("nothing was answered")

    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": []}
    engine.misbehave(hold=True)
    async with app.router.lifespan_context(app):
        request = asyncio.create_task(app(scope, receive, send))
        await eventually_async(lambda: engine.num_active, equals=1)
        has_left.set()
        await request
        await eventually_async(lambda: engine.num_cancelled, equals=1)


async def test_a_bug_is_an_error_in_openais_shape_and_raised_to_the_server(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, sent = create_app(proxy_settings(engine.url)), []
    monkeypatch.setattr(BoostPipeline, "prepare", None)

    async def receive() -> Message:
        return {"type": "http.request", "body": json.dumps(CHAT).encode()}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": URL, "query_string": b"", "headers": []}
    async with app.router.lifespan_context(app):
        with pytest.raises(TypeError):
            await app(scope, receive, send)
    assert sent[0]["status"] == 500
    assert json.loads(sent[1]["body"])["error"]["type"] == "internal_error"


def test_a_finished_request_is_not_taken_for_one_whose_client_left(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy()
    with httpx.Client(base_url=proxy.url) as client:
        for stream in (True, False) * 10:
            client.post("/v1/chat/completions", json={**CHAT, "stream": stream})
    assert read_metric(proxy.url, REQUESTS, outcome="client_left") == 0
    assert read_metric(proxy.url, REQUESTS, outcome="ok") >= 20
    assert engine.num_cancelled == 0
