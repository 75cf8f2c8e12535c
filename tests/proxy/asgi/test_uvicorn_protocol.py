"""Uvicorn's internals are as `ragboost.proxy.asgi.uvicorn_protocol` expects them.

Also run against the lowest supported uvicorn, by `scripts/check_packages.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ragboost.config import ProxySettings
from ragboost.proxy.asgi.disconnect import EXTENSION
from ragboost.proxy.asgi.uvicorn_protocol import limited_protocol

POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CALLBACKS = (
    *("connection_made", "connection_lost", "data_received"),
    *("on_message_begin", "on_headers_complete", "on_body", "on_message_complete"),
)


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.calls: list[str] = []

    def write(self, data: Any) -> None:
        self.written += data

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def is_closing(self) -> bool:
        return "close" in self.calls

    def close(self) -> None:
        self.calls.append("close")


class App:
    """Receives one request's messages, then responds."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.messages: list[Any] = []
        self.respond = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        while True:
            self.messages.append(await receive())
            if not self.messages[-1].get("more_body"):
                break
        await self.respond.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def connection(**limits: Any) -> AsyncIterator[Any]:
    """A protocol with its transport and app, as the server makes one per connection."""
    app, state, transport = App(), ServerState(), Transport()
    config = Config(app, lifespan="off", ws="none", log_config=None)
    config.load()
    protocol = limited_protocol(ProxySettings(**limits))(config, state, {})
    protocol.connection_made(transport)
    try:
        yield SimpleNamespace(protocol=protocol, transport=transport, app=app, state=state)
    finally:
        app.respond.set()
        await asyncio.gather(*state.tasks)
        protocol.connection_lost(None)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        for _ in iter(condition, True):
            await asyncio.sleep(0)


@pytest.mark.parametrize("name", CALLBACKS)
def test_the_protocol_has_the_callback_that_is_extended(name: str) -> None:
    assert callable(getattr(HttpToolsProtocol, name))


async def test_a_connection_has_the_attributes_that_are_used() -> None:
    async with connection() as c:
        c.protocol.data_received(POST % 1)
        protocol, cycle = c.protocol, c.protocol.cycle
        assert protocol.url == b"/x"
        assert protocol.headers == [(b"host", b"x"), (b"content-length", b"1")]
        assert protocol.scope["headers"] is protocol.headers
        assert protocol.loop is asyncio.get_running_loop()
        assert protocol.transport is c.transport
        assert protocol.app is protocol.config.loaded_app
        assert cycle.scope is protocol.scope
        assert (bytes(cycle.body), cycle.more_body, cycle.response_complete) == (b"", True, False)
        assert not cycle.message_event.is_set()
        protocol.data_received(b"y")


async def test_a_body_in_pieces_is_received_as_one_message() -> None:
    async with connection() as c:
        c.protocol.data_received(POST % 6 + b"ab")
        c.protocol.data_received(b"cd")
        c.protocol.data_received(b"ef")
        await until(lambda: len(c.app.messages) > 0)
        assert c.app.messages == [{"type": "http.request", "body": b"abcdef", "more_body": False}]
        c.app.respond.set()
        await until(lambda: c.transport.written != b"")
        assert c.protocol.cycle.response_complete


async def test_a_body_over_its_limit_is_passed_on_while_it_arrives() -> None:
    async with connection(max_body_bytes=1024) as c:
        c.protocol.data_received(POST % 4000)
        for _ in range(4):
            c.protocol.data_received(b"x" * 1000)
            await asyncio.sleep(0)
        await until(lambda: [m["more_body"] for m in c.app.messages][-1:] == [False])
        assert c.app.messages[0]["more_body"]
        assert b"".join(message["body"] for message in c.app.messages) == b"x" * 4000


async def test_the_extension_reports_a_lost_connection_once_and_later_too() -> None:
    lost: list[int] = []
    async with connection() as c:
        c.protocol.data_received(POST % 0)
        await until(lambda: len(c.app.scopes) > 0)
        watch: Callable[[Callable[[], None] | None], None]
        watch = c.app.scopes[0]["extensions"][EXTENSION]["watch"]
        c.protocol.flow.pause_reading()
        watch(lambda: lost.append(1))
        assert c.transport.calls[-1] == "resume_reading"
        c.protocol.connection_lost(None)
        watch(None)
        watch(lambda: lost.append(2))
    assert lost == [1, 2, 2]


async def test_a_head_over_its_limit_reaches_no_app() -> None:
    async with connection(max_header_bytes=1024) as c:
        c.protocol.data_received(b"GET /" + b"y" * 2000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        await until(lambda: c.transport.written != b"")
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        assert c.app.scopes == []


async def test_an_endless_head_is_refused_and_nothing_more_is_read() -> None:
    async with connection(max_header_bytes=1024) as c:
        c.protocol.data_received(b"GET / HTTP/1.1\r\nx-long: " + b"y" * 2000)
        c.protocol.data_received(b"y" * 2000)
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        assert c.transport.calls == ["write_eof"]


async def test_a_slow_head_never_writes_into_a_response_that_is_being_sent() -> None:
    async with connection(header_timeout_s=0.001) as c:
        c.protocol.data_received(POST % 0 + b"GET / HTTP/1.1\r\n")
        await until(lambda: len(c.transport.calls) > 0)
        assert c.transport.calls[0] == "close"
        assert c.transport.written == b""
