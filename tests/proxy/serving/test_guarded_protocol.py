"""Connections end in every state, and read one request at a time.

Also run against the lowest supported uvicorn, by `scripts/check_packages.py`.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.server import ServerState

from ragboost.config import ProxySettings
from ragboost.proxy.serving.guarded_protocol import guarded_protocol
from tests.eventually import eventually_async, run_event_loop
from tests.fakes.clock import LoopClock
from tests.proxy.serving.transport import Transport

GET = b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
LIMITS = {"header_timeout_s": 15.0, "body_timeout_s": 60.0}
KEEP_ALIVE_S = 75


class App:
    """Receives each request's body, then responds."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.bodies: list[bytes] = []
        self.num_left = 0  # clients that left before the response
        self.reads_body = True
        self.waits_for_disconnect = False
        self.respond = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        body, is_partial = b"", self.reads_body
        while is_partial:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.num_left += 1
                return
            body, is_partial = body + message["body"], message["more_body"]
        self.bodies.append(body)
        if self.waits_for_disconnect and (await receive())["type"] == "http.disconnect":
            self.num_left += 1
            return
        await self.respond.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})


@asynccontextmanager
async def connection(**limits: Any) -> AsyncIterator[Any]:
    """A protocol with its transport and app, as the server makes one per connection."""
    app, state, transport = App(), ServerState(), Transport()
    config = Config(
        app, lifespan="off", ws="none", log_config=None, timeout_keep_alive=KEEP_ALIVE_S
    )
    config.load()
    protocol = guarded_protocol(ProxySettings(**{**LIMITS, **limits}))(
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
async def test_a_body_in_pieces_is_received_whole_and_trailers_are_dropped(
    size: int, coding: str
) -> None:
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
            await eventually_async(lambda: c.transport.written.endswith(b"\r\n\r\n"))
            c.transport.written = b""
        assert c.app.bodies == [body] * 3
        assert all(b"x-trailer" not in dict(scope["headers"]) for scope in c.app.scopes)


async def test_later_requests_are_not_parsed_before_the_first_is_answered() -> None:
    async with connection() as c:
        c.protocol.data_received((POST % 3 + b"abc") * 1000)
        c.protocol.data_received((POST % 3 + b"abc") * 2000)
        await run_event_loop()
        assert len(c.app.scopes) == 1
        assert len(c.protocol.pipeline) < 500
        assert c.transport.is_paused
        c.app.respond.set()
        await eventually_async(lambda: c.transport.written.count(b"HTTP/1.1 204"), equals=3000)
        assert c.app.bodies == [b"abc"] * 3000
        assert not c.transport.is_paused


async def test_a_flood_of_requests_fills_no_memory_however_often_the_app_reads() -> None:
    async with connection() as c:
        c.app.respond.set()
        num_sent = 0
        for _ in range(50):
            while not c.transport.is_paused:
                c.protocol.data_received(GET * 4000)
                num_sent += 4000
            assert len(c.protocol._held) < 1_000_000
            await run_event_loop(2)
        await eventually_async(lambda: c.state.total_requests, equals=num_sent)


async def test_a_body_that_the_app_does_not_read_waits_in_the_clients_socket() -> None:
    async with connection() as c:
        c.app.reads_body = False
        c.protocol.data_received(POST % 1_000_000)
        for _ in range(10):
            if not c.transport.is_paused:
                c.protocol.data_received(b"x" * 50_000)
            await run_event_loop()
        assert c.transport.is_paused
        assert len(c.protocol.cycle.body) < 200_000


async def test_requests_that_end_within_one_piece_of_a_chunked_body_are_limited() -> None:
    chunked = b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    async with connection() as c:
        c.protocol.data_received(chunked)
        c.protocol.data_received(b"0\r\n\r\n" + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        c.app.respond.set()
        await eventually_async(lambda: len(c.app.scopes), equals=1001)


async def test_the_framing_of_chunks_is_limited() -> None:
    async with connection() as c:
        c.protocol.data_received(
            b"POST /x HTTP/1.1\r\nHost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        c.protocol.data_received(b"1\r\na\r\n" * 100_000)
        assert c.transport.written == b""
        c.protocol.data_received(b"0\r\nx-endless: " + b"y" * 1_000_000)
        assert c.transport.written.startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("behind", [b"", GET, POST % 9 + b"x", b"GET / HT"])
async def test_a_running_request_sees_the_lost_connection_whatever_is_behind_it(
    behind: bytes,
) -> None:
    async with connection() as c:
        c.app.respond.set()
        c.protocol.data_received(GET)
        await eventually_async(lambda: c.state.total_requests, equals=1)
        c.app.respond.clear()
        c.app.waits_for_disconnect = True
        c.protocol.data_received(GET + behind)
        await run_event_loop()
        c.protocol.connection_lost(None)
        await eventually_async(lambda: c.app.num_left, equals=1)


@pytest.mark.parametrize("num", [257, 5000])
async def test_a_head_of_very_many_lines_is_refused(num: int) -> None:
    async with connection() as c:
        c.protocol.data_received(GET[:-2] + b"a: b\r\n" * num + b"\r\n")
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        assert c.app.scopes == []


async def test_a_head_over_its_limit_reaches_no_app() -> None:
    async with connection() as c:
        c.protocol.data_received(b"GET /" + b"y" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
        assert c.transport.written.startswith(b"HTTP/1.1 431")
        await run_event_loop()
        assert c.app.scopes == []


async def test_a_head_that_is_split_does_not_count_the_body_behind_it() -> None:
    request = POST % 90_000 + b"x" * 90_000
    async with connection() as c:
        c.app.respond.set()
        for cut in range(len(POST % 90_000) - 5, len(POST % 90_000) + 2):
            c.protocol.data_received(request[:cut])
            c.protocol.data_received(request[cut:])
            await eventually_async(lambda: c.transport.written.endswith(b"\r\n\r\n"))
            assert c.transport.written.startswith(b"HTTP/1.1 204")
            c.transport.written = b""


async def test_an_endless_head_is_refused_and_nothing_more_is_read() -> None:
    async with connection() as c:
        c.protocol.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\nx-long: " + b"y" * 70_000)
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
