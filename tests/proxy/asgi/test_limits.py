"""What a client may send, and how long it may take."""

import asyncio
import socket
from collections.abc import Callable

import httpx
import pytest
from starlette.types import Message

from ragboost.config import ProxySettings
from ragboost.config.memory import PROCESS_BYTES
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.request_body import BodyTimeoutError, RequestBodies
from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.sockets import exchange


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/anything"])
def test_a_large_body_is_a_413_whether_announced_or_counted(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], path: str, is_chunked: bool
) -> None:
    proxy = start_proxy(proxy={"max_body_bytes": 2000})
    body = b"x" * 3000
    answer = httpx.post(proxy.url + path, content=iter([body]) if is_chunked else body)
    assert answer.status_code == 413
    assert "proxy.max_body_bytes" in answer.json()["error"]["message"]
    assert engine.requests == []
    assert httpx.post(proxy.url + path, content=b"x" * 2000).status_code == 200


def test_a_body_that_trickles_in_is_a_408(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy(proxy={"body_timeout_s": 0.2})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
    answer = exchange(proxy.port, head + b"content-length: 9\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408")
    assert engine.requests == []


@pytest.mark.parametrize("size", [70_000, 1_000_000])
def test_a_large_head_is_a_431(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer], size: int
) -> None:
    proxy = start_proxy()
    head = b"GET /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-large: "
    answer = exchange(proxy.port, head + b"y" * size + b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 431")
    assert engine.requests == []


def test_a_head_that_never_ends_is_a_408(start_proxy: Callable[..., ProxyServer]) -> None:
    proxy = start_proxy(proxy={"header_timeout_s": 0.2})
    assert exchange(proxy.port, b"GET / HTTP/1.1\r\nhost: x\r\n").startswith(b"HTTP/1.1 408")


def test_a_connection_on_which_nothing_comes_is_closed(
    start_proxy: Callable[..., ProxyServer],
) -> None:
    proxy = start_proxy(proxy={"header_timeout_s": 0.2})
    assert exchange(proxy.port).startswith(b"HTTP/1.1 408")


def test_the_head_limit_counts_each_request_of_a_connection(
    start_proxy: Callable[..., ProxyServer],
) -> None:
    proxy = start_proxy()
    with httpx.Client(base_url=proxy.url, headers={"x-some": "y" * 40_000}) as client:
        assert [client.get("/health").status_code for _ in range(5)] == [200] * 5


def test_bodies_are_bounded_together_while_they_arrive_and_while_their_requests_run(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    limits = {"max_body_bytes": 100_000, "memory_bytes": PROCESS_BYTES + 16 * 150_000}
    proxy = start_proxy(proxy=limits)
    url, body = proxy.url + "/v1/chat/completions", b'{"messages":[]}'.ljust(90_000)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port)) as arriving:
        arriving.sendall(head + body[:-1])
        bodies = proxy.app.state.bodies
        eventually(lambda: bodies.num_bytes, equals=len(body) - 1)
        refused = httpx.post(url, content=body)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "1"
        assert "proxy.memory_bytes" in refused.json()["error"]["message"]
        assert httpx.post(url, content=body[:50_000]).status_code == 200
        engine.misbehave(hold=True)
        arriving.sendall(body[-1:])
        eventually(lambda: engine.num_active, equals=1)
        engine.behave()
        assert httpx.post(url, content=iter([body])).status_code == 503
    eventually(lambda: bodies.num_bytes, equals=0)
    assert httpx.post(url, content=body).status_code == 200
    assert read_metric(proxy.url, "ragboost_requests_total", outcome="refused") == 2


async def test_another_server_leaves_the_time_of_a_body_to_the_app() -> None:
    async def receive() -> Message:
        message: Message = await asyncio.Future()
        return message

    async def send(_message: Message) -> None: ...

    scope = {"type": "http", "headers": [], "path": "/"}
    bodies = RequestBodies(ProxySettings(body_timeout_s=0.01))
    with pytest.raises(BodyTimeoutError, match="body_timeout_s"):
        await bodies.read(ClientExchange(scope, receive, send, endpoint="other"))
