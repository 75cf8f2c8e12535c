"""Connections end in every state, read one request at a time, and fit uvicorn's server.

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
from uvicorn.server import ServerState

from ragboost.config import ProxySettings
from ragboost.serving.connection import http_connection
from ragboost.serving.exchange import CONNECTION_EXTENSION
from tests.eventually import eventually_async, run_event_loop
from tests.fakes.clock import LoopClock

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LIMITS = {"header_timeout_s": 15.0, "body_timeout_s": 60.0, "keep_alive_s": 75}


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.calls: list[str] = []
        self.num_unsent = 0

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.num_unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.calls.append("write_eof")

    def pause_reading(self) -> None:
        self.calls.append("pause_reading")

    def resume_reading(self) -> None:
        self.calls.append("resume_reading")

    def is_closing(self) -> bool:
        return "close" in self.calls or "abort" in self.calls

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class App:
    """Receives each request's messages, then responds."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.messages: list[Any] = []
        self.reads_body = True
        self.respond = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        while self.reads_body:
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
    protocol = http_connection(ProxySettings(**{**LIMITS, **limits}))(
        config=config, server_state=state, app_state={}, _loop=None
    )
    protocol.connection_made(transport)
    try:
        yield SimpleNamespace(protocol=protocol, transport=transport, app=app, state=state)
    finally:
        app.respond.set()
        protocol.connection_lost(None)
        await asyncio.gather(*state.tasks, return_exceptions=True)


async def test_the_server_sees_its_connections_tasks_and_requests() -> None:
    async with connection() as c:
        assert c.state.connections == {c.protocol}
        c.protocol.data_received(GET)
        assert len(c.state.tasks) == 1
        c.app.respond.set()
        await eventually_async(lambda: c.state.total_requests, equals=1)
        await eventually_async(lambda: len(c.state.tasks), equals=0)
        c.protocol.shutdown()
        assert c.transport.is_closing()
        c.protocol.connection_lost(None)
        assert c.state.connections == set()


async def test_a_connection_that_is_told_to_stop_answers_first() -> None:
    async with connection() as c:
        c.protocol.data_received(GET)
        c.protocol.shutdown()
        assert c.transport.calls == []
        c.app.respond.set()
        await eventually_async(lambda: c.transport.calls, equals=["close"])
        assert b"connection: close" in c.transport.written


@pytest.mark.parametrize("coding", ["length", "chunked"])
@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_body_in_pieces_is_received_as_one_message(size: int, coding: str) -> None:
    body = b"ab\r\n\r\ncd" * 20
    request = POST % len(body) + body
    if coding == "chunked":
        request = b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        request += b"%x\r\n%b\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(body), body)
    async with connection() as c:
        c.app.respond.set()
        for _ in range(3):
            for start in range(0, len(request), size):
                c.protocol.data_received(request[start : start + size])
                await asyncio.sleep(0)
            await eventually_async(lambda: c.protocol.transport.written.endswith(b"\r\n\r\n"))
            c.transport.written = b""
        message = {"type": "http.request", "body": body, "more_body": False}
        assert c.app.messages == [message] * 3
        assert all(b"x-trailer" not in dict(scope["headers"]) for scope in c.app.scopes)


async def test_later_requests_are_not_parsed_before_the_first_is_answered() -> None:
    async with connection() as c:
        c.protocol.data_received((POST % 3 + b"abc") * 1000)
        c.protocol.data_received((POST % 3 + b"abc") * 2000)
        await run_event_loop()
        assert len(c.app.scopes) == 1
        assert c.transport.calls == ["pause_reading"]
        c.app.respond.set()
        await eventually_async(lambda: len(c.app.scopes), equals=3000)
        assert c.transport.calls == ["pause_reading", "resume_reading"]
        await eventually_async(lambda: c.transport.written.count(b"HTTP/1.1 204"), equals=3000)


async def test_requests_that_end_within_one_piece_of_a_chunked_body_are_limited() -> None:
    chunked = b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with connection() as c:
        c.protocol.data_received(chunked)
        c.protocol.data_received(b"0\r\n\r\n" + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        c.app.respond.set()
        await eventually_async(lambda: len(c.app.scopes), equals=1001)


@pytest.mark.parametrize("line", [b"GET  / HTTP/1.1", b"GET /  HTTP/1.1"])
@pytest.mark.parametrize("cut", [0, 3, 8, 24])
async def test_spaces_in_a_request_line_behind_a_chunked_body_are_refused(
    line: bytes, cut: int
) -> None:
    head = b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b"4;a=1\r\n\r\n\r\n\r\n0\r\nx-trailer: 1\r\n\r\n"
    for trailer in (b"", line + b"\r\nHost: localhost\r\n\r\n"):
        data = body + (trailer or b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with connection() as c:
            c.app.respond.set()
            c.protocol.data_received(head)
            at = len(body) + cut
            c.protocol.data_received(data[:at])
            c.protocol.data_received(data[at:])
            await eventually_async(lambda: c.transport.written.count(b"HTTP/1.1 "), equals=2)
            assert c.app.messages[0]["body"] == b"\r\n\r\n"
            assert (b"HTTP/1.1 400" in c.transport.written) == bool(trailer)


async def test_a_body_over_its_limit_is_kept_no_further() -> None:
    async with connection(max_body_bytes=1024) as c:
        c.protocol.data_received(POST % 4000)
        for _ in range(3):
            c.protocol.data_received(b"x" * 1000)
            await asyncio.sleep(0)
        await eventually_async(lambda: len(c.app.messages) > 1)
        assert c.app.messages[0] == {
            "type": "http.request",
            "body": b"x" * 2000,
            "more_body": True,
        }
        assert c.app.messages[1] == {"type": "http.disconnect"}
        assert c.transport.written.startswith(b"HTTP/1.1 413")


async def test_the_framing_of_chunks_is_limited() -> None:
    async with connection(max_header_bytes=1024) as c:
        c.protocol.data_received(
            b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        c.protocol.data_received(b"1\r\na\r\n" * 1000)
        assert c.transport.written == b""
        c.protocol.data_received(b"0\r\nx-endless: " + b"y" * 20_000)
        assert c.transport.written.startswith(b"HTTP/1.1 431")


async def test_each_exchange_reports_the_lost_connection_to_its_own_watcher() -> None:
    lost: list[int] = []
    async with connection() as c:
        c.app.respond.set()
        c.protocol.data_received(GET)
        await eventually_async(lambda: c.state.total_requests, equals=1)
        c.app.respond.clear()
        c.protocol.data_received(GET)
        await eventually_async(lambda: len(c.app.scopes), equals=2)
        watches: list[Callable[[Callable[[], None] | None], None]]
        watches = [s["extensions"][CONNECTION_EXTENSION]["watch"] for s in c.app.scopes]
        watches[1](lambda: lost.append(1))
        watches[0](None)  # the first request's work ends after its response
        c.protocol.connection_lost(None)
        watches[1](None)
        watches[1](lambda: lost.append(2))
    assert lost == [1, 2]


async def test_a_head_over_its_limit_reaches_no_app() -> None:
    async with connection(max_header_bytes=1024) as c:
        c.protocol.data_received(b"GET /" + b"y" * 2000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        await run_event_loop()
        assert c.app.scopes == []


async def test_a_head_that_is_split_does_not_count_the_body_behind_it() -> None:
    request = POST % 5000 + b"x" * 5000
    async with connection(max_header_bytes=1024) as c:
        c.app.respond.set()
        for cut in range(len(POST % 5000) - 5, len(POST % 5000) + 2):
            c.protocol.data_received(request[:cut])
            c.protocol.data_received(request[cut:])
            await eventually_async(lambda: c.transport.written.endswith(b"\r\n\r\n"))
            assert c.transport.written.startswith(b"HTTP/1.1 204")
            c.transport.written = b""


async def test_an_endless_head_is_refused_and_nothing_more_is_read() -> None:
    async with connection(max_header_bytes=1024) as c:
        c.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\nx-long: " + b"y" * 2000)
        c.protocol.data_received(b"y" * 2000)
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        assert c.transport.calls == ["write_eof"]


BEGINNINGS = {
    "silence": ((), 15),
    "part of a head": ((b"GET / HT",), 15),
    "an empty line": ((b"\r\n",), 15),
    "part of a body": ((POST % 9 + b"x",), 60),
    "part of a chunked body": (
        (b"POST / HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r",),
        60,
    ),
    "an empty line after a response": ((GET, b"\r\n"), 15),
    "part of a head after a response": ((GET, b"GET"), 15),
}


@pytest.mark.parametrize("name", BEGINNINGS)
async def test_a_request_that_does_not_end_is_refused_however_it_trickles_in(name: str) -> None:
    pieces, seconds = BEGINNINGS[name]
    clock = LoopClock()
    async with connection() as c:
        c.app.respond.set()
        for piece in pieces:
            c.protocol.data_received(piece)
            await run_event_loop()
        c.transport.written = b""
        await clock.advance(seconds - 1)
        assert c.transport.written == b""
        if "body" in name:
            c.protocol.data_received(b"\n" if "chunked" in name else b"y")
        await clock.advance(2)
        assert c.transport.written.startswith(b"HTTP/1.1 408")
        assert c.transport.calls == ["write_eof"]
        await clock.advance(2)
        assert c.transport.calls == ["write_eof", "close"]


async def test_an_idle_connection_is_closed_without_a_word() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.app.respond.set()
        for _ in range(3):
            c.protocol.data_received(GET)
            await run_event_loop()
            c.transport.written = b""
            await clock.advance(74)
        assert c.transport.calls == []
        await clock.advance(2)
        assert (c.transport.written, c.transport.calls) == (b"", ["close"])


async def test_a_response_may_take_any_time() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.protocol.data_received(GET)
        await clock.advance(10_000)
        c.app.respond.set()
        await run_event_loop()
        assert c.transport.written.startswith(b"HTTP/1.1 204")
        assert c.transport.calls == []


async def test_a_client_that_reads_no_response_is_cut() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.protocol.data_received(GET)
        c.protocol.pause_writing()
        await clock.advance(59)
        assert c.transport.calls == []
        await clock.advance(2)
        assert c.transport.calls == ["abort"]


async def test_a_client_that_reads_slowly_is_not_cut() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.protocol.data_received(GET)
        for _ in range(5):
            c.protocol.pause_writing()
            await clock.advance(50)
            c.protocol.resume_writing()
        await clock.advance(1000)
        assert c.transport.calls == []


async def test_a_response_that_is_never_taken_does_not_keep_the_connection() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.app.respond.set()
        c.transport.num_unsent = 1000
        c.protocol.data_received(GET.replace(b"host", b"connection: close\r\nhost"))
        await clock.advance(2)
        assert c.transport.calls == ["write_eof", "close"]
        await clock.advance(61)
        assert c.transport.calls == ["write_eof", "close", "abort"]


async def test_the_rest_of_a_request_that_is_answered_early_is_dropped_for_a_while() -> None:
    async with connection(max_body_bytes=2048) as c:
        c.app.reads_body = False
        c.app.respond.set()
        c.protocol.data_received(POST % 1_000_000 + b"x")
        await eventually_async(lambda: c.transport.calls, equals=["write_eof"])
        assert b"connection: close" in c.transport.written
        c.protocol.data_received(b"x" * 2000)
        assert c.transport.calls == ["write_eof"]
        c.protocol.data_received(b"x" * 2000)
        assert c.transport.calls == ["write_eof", "abort"]


async def test_a_request_behind_a_pending_response_is_never_refused_into_it() -> None:
    clock = LoopClock()
    async with connection() as c:
        c.protocol.data_received(GET + b"nonsense\r\n\r\n")
        await clock.advance(16)
        assert (c.transport.written, c.transport.calls) == (b"", [])
        c.app.respond.set()
        await run_event_loop()
        assert b"HTTP/1.1 400" in c.transport.written
        assert c.transport.written.startswith(b"HTTP/1.1 204")
