"""Answers as servers frame them, and connections that are used again only when that is safe.

Also run against the lowest supported aiohttp, by `scripts/check_packages.py`.
"""

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
import uvloop

from ragboost.config import BackendSettings
from ragboost.errors import BackendConnectionError, BackendTimeoutError
from ragboost.proxy.upstream import client
from ragboost.proxy.upstream.backend import Backend
from ragboost.proxy.upstream.client import UpstreamResponse
from tests.eventually import DEADLINE_S, run_event_loop
from tests.fakes.clock import LoopClock

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def backend(serve: Serve, **settings: float) -> AsyncIterator[Backend]:
    """A backend whose server runs `serve` for each connection."""

    async def run(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(run, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    one = Backend(BackendSettings(url=f"http://127.0.0.1:{port}/base/v1", **settings))
    try:
        yield one
    finally:
        await one.aclose()
        server.close()


def answers(*pieces: bytes, num: int = 1) -> Serve:
    """Answer so many requests of a connection with these pieces, each sent on its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(num):
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await run_event_loop()  # a piece arrives by itself

    return serve


async def body_of(response: UpstreamResponse) -> bytes:
    body = b""
    while chunk := await response.read():
        body += chunk
    return body


async def get(one: Backend, method: str = "GET") -> bytes:
    return await body_of(await one.request(method, "/x", headers=[]))


@pytest.mark.parametrize(
    "pieces",
    [
        (OK + b"content-length: 5\r\n\r\n", b"he", b"llo"),
        (OK + b"transfer-encoding: chunked\r\n\r\n", b"3\r\nhel\r\n2\r", b"\nlo\r\n0\r\n\r\n"),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-later: 1\r\n\r\n",),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK + b"content-length: 5\r\n\r\nhello"),
        (OK + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 5\r\n\r\nhello",),
        (OK + b"\r\n", b"hello"),
        (b"HTTP/1.0 200 OK\r\n\r\nhello",),
        (b"HTT", b"P/1.1 200 OK\r\nConte", b"nt-Length: 5\r\nconnection: close\r\n\r\nhello"),
    ],
)
async def test_bodies_arrive_however_they_are_framed(pieces: tuple[bytes, ...]) -> None:
    async with backend(answers(*pieces)) as one:
        assert await get(one) == b"hello"


@pytest.mark.parametrize("num", [1, 4_100, 20_000])
async def test_a_body_in_many_tiny_chunks_is_complete_only_when_all_of_it_was_read(
    num: int,
) -> None:
    head = OK + b"transfer-encoding: chunked\r\n\r\n"
    async with backend(answers(head + b"1\r\nx\r\n" * num + b"0\r\n\r\n")) as one:
        response, read = await one.request("GET", "/x", headers=[]), 0
        while not response.is_complete:
            read += len(await response.read())
        assert (read, await response.read()) == (num, b"")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", OK + b"content-length: 5\r\n\r\n"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n"),
        ("GET", OK + b"content-length: 0\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_are_over_with_their_head(method: str, answer: bytes) -> None:
    async with backend(answers(answer, num=9)) as one:
        assert await get(one, method) == b""
        assert await get(one, method) == b""


@pytest.mark.parametrize(
    "pieces",
    [
        (b"not http\r\n\r\n",),
        (OK + b"x: " + b"y" * 300_000,),
        (OK + b"x: y\r\n" * 200 + b"content-length: 0\r\n\r\n",),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",),
        (b"",),
        (b"HTTP/1.1 099 What\r\ncontent-length: 0\r\n\r\n",),
    ],
)
async def test_what_is_no_answer_is_an_error_before_one_begins(pieces: tuple[bytes, ...]) -> None:
    async with backend(answers(*pieces)) as one:
        with pytest.raises(BackendConnectionError) as refused:
            await one.request("GET", "/x", headers=[])
    assert not any(text in str(refused.value) for text in ("not http", "yyy", "\n"))


@pytest.mark.parametrize(
    "pieces",
    [
        (OK + b"content-length: 9\r\n\r\nhello",),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",),
        (OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n", b"no size\r\n"),
    ],
)
async def test_a_body_that_ends_early_is_an_error_behind_what_came(
    pieces: tuple[bytes, ...],
) -> None:
    async with backend(answers(*pieces)) as one:
        response = await one.request("GET", "/x", headers=[])
        assert await response.read() == b"hello"
        with pytest.raises(BackendConnectionError):
            await response.read()


async def test_a_silent_server_is_a_timeout_before_and_inside_an_answer() -> None:
    has_come = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        has_come.set()
        if b"/begin" in head:
            writer.write(OK + b"content-length: 9\r\n\r\nhello")
        if b"/interim" in head:
            writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n")
        await reader.read()

    clock = LoopClock()
    async with backend(serve, read_timeout_s=600) as one:
        for target in ("/x", "/interim"):
            request = asyncio.create_task(one.request("GET", target, headers=[]))
            await has_come.wait()
            has_come.clear()
            await clock.advance(601)
            with pytest.raises(BackendTimeoutError):
                await request
        response = await one.request("GET", "/begin", headers=[])
        assert await response.read() == b"hello"
        more = asyncio.create_task(response.read())
        await clock.advance(601)
        with pytest.raises(BackendTimeoutError):
            await more


async def test_each_request_of_a_connection_has_the_whole_read_timeout() -> None:
    has_come = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if b"/silent" in head:
                has_come.set()
                await reader.read()
                return
            writer.write(OK + b"content-length: 2\r\n\r\nok")

    clock = LoopClock()
    async with backend(serve, read_timeout_s=2) as one:
        assert await body_of(await one.request("GET", "/a", headers=[])) == b"ok"
        await clock.advance(1)
        request = asyncio.create_task(one.request("GET", "/silent", headers=[]))
        await has_come.wait()
        await clock.advance(1.5)
        assert not request.done()
        await clock.advance(1)
        with pytest.raises(BackendTimeoutError):
            await request


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize(
    "unasked",
    [
        OK + b"content-length: 7\r\n\r\nunasked",
        b"HTTP/1.1 200",
        b"\r\n",
        b"HTTP/1.1 408 Late\r\n\r\n",
    ],
)
async def test_a_connection_on_which_something_unasked_came_is_not_used_again(
    unasked: bytes, is_seen: bool
) -> None:
    ports: list[int] = []
    is_due, is_sent = threading.Event(), threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(2):
            connection, address = listener.accept()
            ports.append(address[1])
            connection.recv(65536)
            connection.sendall(OK + b"content-length: 2\r\n\r\nok")
            assert is_due.wait(DEADLINE_S)
            connection.sendall(unasked)
            is_sent.set()
            connections.append(connection)

    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        one = Backend(BackendSettings(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert await get(one) == b"ok"
        is_due.set()
        assert is_sent.wait(DEADLINE_S)  # the event loop stands still meanwhile
        if is_seen:
            await run_event_loop()
        assert await get(one) == b"ok"
        thread.join()
        await one.aclose()
    for connection in connections:
        connection.close()
    assert len(set(ports)) == 2


async def test_what_comes_unasked_behind_an_answer_is_not_taken_for_the_next() -> None:
    ports: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            ports.append(writer.get_extra_info("peername")[1])
            more = OK + b"content-length: 7\r\n\r\nunasked" if b"/more" in head else b""
            writer.write(OK + b"content-length: 2\r\n\r\nok" + more)

    async with backend(serve) as one:
        for target in ("/a", "/b", "/more", "/c", "/d"):
            assert await body_of(await one.request("GET", target, headers=[])) == b"ok"
            await run_event_loop()
    assert len(set(ports)) == 2
    assert ports[0] == ports[1] == ports[2] != ports[3] == ports[4]


async def test_one_connection_carries_answers_of_every_framing() -> None:
    ok, chunked = b"content-length: 2\r\n\r\nok", b"2\r\nok\r\n0\r\nx-later: 1\r\n\r\n"
    interim, empty = b"HTTP/1.1 103 Early Hints\r\nx: y\r\n\r\n", b"content-length: 9\r\n\r\n"
    kinds = {
        "/length": OK + ok,
        "/chunked": OK + b"transfer-encoding: chunked\r\n\r\n" + chunked,
        "/interim": interim + OK + ok,
        "/empty": OK + b"content-length: 0\r\n\r\n",
        "/204": b"HTTP/1.1 204 No Content\r\n\r\n",
        "/304": b"HTTP/1.1 304 Not Modified\r\n" + empty,
        "/error": b"HTTP/1.1 503 Busy\r\n" + ok,
    }
    ports: set[int] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            ports.add(writer.get_extra_info("peername")[1])
            target = head.split()[1].decode().removeprefix("/base")
            writer.write(OK + empty if head.startswith(b"HEAD") else kinds[target])

    async with backend(serve) as one:
        for before in kinds:
            for target in kinds:
                await body_of(await one.request("GET", before, headers=[]))
                assert await body_of(await one.request("HEAD", target, headers=[])) == b""
                answer = await one.request("GET", target, headers=[])
                assert answer.status == int(kinds[target].split(b"HTTP/1.1 ")[-1][:3])
                body = b"ok" if kinds[target].endswith((ok, chunked)) else b""
                assert await body_of(answer) == body
    assert len(ports) == 1


async def test_the_connection_used_last_is_used_first_and_an_idle_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_KEEPALIVE_S", 3)
    closed: asyncio.Queue[bytes] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served = b""
        while not reader.at_eof():
            if head := await reader.read(1000):
                served += head.split()[1][-1:]
                writer.write(OK + b"content-length: 2\r\n\r\nok")
        closed.put_nowait(served)

    clock = LoopClock()
    async with backend(serve) as one:
        requests = [one.request("GET", target, headers=[]) for target in ("/a", "/b")]
        for response in await asyncio.gather(*requests):
            await body_of(response)
        await clock.advance(2)
        for target in ("/c", "/d"):
            await body_of(await one.request("GET", target, headers=[]))
        await clock.advance(2)
        first = await closed.get()
        await clock.advance(2)
        assert sorted([len(first), len(await closed.get())]) == [1, 3]


async def test_a_probe_neither_takes_a_connection_from_the_pool_nor_leaves_one_there() -> None:
    """The server closes after a probe, though its answer does not say so: a request that came next
    on that connection would be lost."""
    ports: list[tuple[bytes, int]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            ports.append((head.split()[1], writer.get_extra_info("peername")[1]))
            writer.write(OK + b"content-length: 2\r\n\r\nok")

    async with backend(serve) as one:
        for _ in range(2):
            assert await one.ask("/health") == (200, b"ok")
            assert await get(one) == b"ok"
    (probe, first), (_, second), (_, again), (_, third) = ports
    assert probe == b"/base/health"
    assert second == third
    assert len({first, second, again}) == 3


async def test_interim_responses_without_end_are_an_error() -> None:
    flood = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" * 1000
    async with backend(answers(flood)) as one:
        with pytest.raises(BackendConnectionError, match="invalid HTTP"):
            await one.request("GET", "/x", headers=[])


async def test_a_connection_that_the_server_closed_is_not_used_even_if_no_event_told() -> None:
    requests: list[bytes] = []
    is_closed = threading.Event()

    def serve(listener: socket.socket) -> None:
        for _ in range(3):
            connection, _ = listener.accept()
            requests.append(connection.recv(65536))
            connection.sendall(OK + b"content-length: 2\r\n\r\nok")
            connection.close()
            is_closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        one = Backend(BackendSettings(url=f"http://127.0.0.1:{listener.getsockname()[1]}"))
        for _ in range(3):
            response = await one.request("POST", "/x", headers=[], body=b"body")
            assert await response.read() == b"ok"
            assert is_closed.wait(DEADLINE_S)  # the event loop stands still meanwhile
            is_closed.clear()
        thread.join()
        await one.aclose()
    assert [request.count(b"body") for request in requests] == [1, 1, 1]


@pytest.mark.parametrize(
    ("method", "headers", "is_repeated"),
    [
        ("POST", [], False),
        ("PATCH", [], False),
        ("POST", [(b"idempotency-key", b"k")], True),
        ("GET", [], True),
        ("PUT", [], True),
    ],
)
async def test_what_a_server_has_read_is_sent_again_only_if_it_may_be_repeated(
    method: str, headers: list[tuple[bytes, bytes]], is_repeated: bool
) -> None:
    num_requests = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_requests
        await reader.readuntil(b"\r\n\r\n")
        num_requests += 1
        writer.write(OK + b"content-length: 0\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        num_requests += 1  # and closes

    async with backend(serve) as one:
        assert await body_of(await one.request(method, "/x", headers=headers)) == b""
        again = one.request(method, "/x", headers=headers)
        if is_repeated:
            assert await body_of(await again) == b""
        else:
            with pytest.raises(BackendConnectionError):
                await again
    assert num_requests == (3 if is_repeated else 2)


async def test_an_answer_that_nobody_reads_is_not_read_from_the_server_either() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"content-length: 67108864\r\n\r\n")
        for _ in range(1024):
            writer.write(b"x" * 65536)
            await writer.drain()
            sent += 65536

    async with backend(serve) as one:
        response = await one.request("GET", "/x", headers=[])
        await run_event_loop(1000)
        held_back = sent
        received = 0
        while chunk := await response.read():
            received += len(chunk)
    assert held_back < 16 * 1024 * 1024
    assert received == 67108864


async def test_giving_up_a_request_closes_its_connection() -> None:
    has_come, is_closed = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        has_come.set()
        assert await reader.read() == b""
        is_closed.set()

    async with backend(serve) as one:
        task = asyncio.create_task(one.request("GET", "/x", headers=[]))
        await has_come.wait()
        task.cancel()
        await is_closed.wait()


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb"])
async def test_a_line_break_in_a_header_makes_no_request(value: bytes) -> None:
    async with backend(answers(OK + b"content-length: 0\r\n\r\n")) as one:
        with pytest.raises(BackendConnectionError, match="line break"):
            await one.request("GET", "/x", headers=[(b"x-name", value)])


HEADERS = [(b"accept", b"*/*"), (b"x-Name", b"caf\xe9"), (b"X-name", b"\xc3\xa9 ")]


async def test_a_head_is_sent_byte_for_byte_with_the_urls_path_and_user() -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK + b"content-length: 0\r\n\r\n")

    async with backend(serve) as one:
        url = one.url.replace("//", "//me:s%20ecret@")
        two = Backend(BackendSettings(url=url))
        response = await two.request("POST", "//y/../%2e%2F?z=%7e'\"", headers=HEADERS)
        assert await response.read() == b""
        await two.aclose()
    host = one.url.split("/")[2].encode()
    assert heads == [
        b"POST /base//y/../%2e%2F?z=%7e'\" HTTP/1.1\r\nhost: " + host + b"\r\n"
        b"accept: */*\r\nx-Name: caf\xe9\r\nX-name: \xc3\xa9 \r\n"
        b"authorization: Basic bWU6cyBlY3JldA==\r\ncontent-length: 0\r\n\r\n"
    ]


def test_a_look_up_that_nobody_waits_for_any_more_leaves_no_error() -> None:
    """On the event loop of a served proxy, which looks names up in threads."""
    url = "http://" + ".".join("a" * 150)  # too long for DNS: an error without any traffic
    unheard: list[object] = []

    async def give_up() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        one = Backend(BackendSettings(url=url))
        waiting = [asyncio.create_task(one.request("GET", "/", headers=[])) for _ in range(16)]
        await asyncio.sleep(0)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(4):  # later look-ups: the first have ended
            with pytest.raises(BackendConnectionError, match="no such host"):
                await one.request("GET", "/", headers=[])
        waiting.clear()
        gc.collect()

    uvloop.run(give_up())
    assert unheard == []


async def test_the_next_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with backend(answers(OK + b"content-length: 2\r\n\r\nok")) as one:
        port = urlsplit(one.url).port
        assert port is not None
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))
            for address in ("127.0.0.2", "127.0.0.1")
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        two = Backend(BackendSettings(url=f"http://backend.example:{port}"))
        response = await two.request("GET", "/health", headers=[])
        assert response.status == 200
        assert await response.read() == b"ok"
        await two.aclose()
