"""The proxy's connections on real sockets: whatever a client sends, one request stays one."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.metrics import read_metric
from tests.sockets import exchange, open_request

URL = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
END = b"\r\n\r\n"
UPGRADES = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    "websocket": b"upgrade: websocket\r\nconnection: upgrade\r\n",
    "without connection": b"upgrade: h2c\r\n",
    "two": b"upgrade: a\r\nconnection: keep-alive, upgrade\r\nupgrade: b\r\n",
}


@contextmanager
def raw_backend(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A backend that sends these bytes for each connection's request; its URL and requests."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("kind", UPGRADES)
def test_an_upgrade_is_ignored_and_the_body_forwarded(
    proxy: ProxyServer, engine: FakeEngine, kind: str, is_split: bool, is_chunked: bool
) -> None:
    smuggled = b"POST /v1/smuggled HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    length = b"transfer-encoding: chunked" if is_chunked else b"content-length: %d" % len(smuggled)
    expect = b"expect: 100-continue\r\n" if is_split else b""
    head = b"POST /v1/first HTTP/1.1\r\nhost: x\r\n" + UPGRADES[kind] + expect + length + END
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled) if is_chunked else smuggled
    last = b"GET /v1/last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(head if is_split else head + body + last)
        if is_split:  # the head is parsed before the body arrives
            assert connection.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
            connection.sendall(body + last)
        received = b""
        while data := connection.recv(65536):
            received += data
    assert received.count(b"HTTP/1.1 200") == 2
    assert [(one.path, one.body) for one in engine.requests] == [
        ("/v1/first", smuggled),
        ("/v1/last", b""),
    ]
    names = {name.lower() for name, _ in engine.requests[0].headers}
    assert not names & {"upgrade", "http2-settings", "connection"} - {"connection"}


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"CONNECT example.com:443 HTTP/1.1", 501),
        (b"CONNECT /v1/models HTTP/1.1", 501),
        (b"GET / HTTP/2.0", 505),
        (b"GET /", 505),
        (b"GET /\x1b[31m HTTP/1.1", 400),
        (b"GET /health#fragment HTTP/1.1", 400),
        (b"GET /health HTTP/1.1\r\nhost: localhost", 400),  # with that of all
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip, chunked", 501),
    ],
)
def test_what_is_not_supported_is_refused_and_ends_the_connection(
    proxy: ProxyServer, engine: FakeEngine, request_line: bytes, status: int
) -> None:
    smuggled = b"GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = exchange(proxy.port, request_line + b"\r\nhost: x\r\n\r\n" + smuggled)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert answer.count(b"\r\n\r\n") == 1
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == str(status)
    assert engine.requests == []


def test_pipelined_requests_are_answered_in_order(proxy: ProxyServer, engine: FakeEngine) -> None:
    gets = b"".join(b"GET /v1/%d HTTP/1.1\r\nhost: x\r\n\r\n" % i for i in range(200))
    answer = exchange(proxy.port, gets + b"GET /last HTTP/1.0\r\n\r\n")
    assert [one.path for one in engine.requests] == [*(f"/v1/{i}" for i in range(200)), "/last"]
    assert answer.count(b"HTTP/1.1 200") == 201


def test_a_flood_of_pipelined_requests_waits_in_the_clients_socket(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    engine.misbehave(hold=True)
    flood = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 30_000
    with open_request(proxy.port, URL, CHAT) as connection:
        eventually(lambda: engine.num_active, equals=1)
        connection.setblocking(False)
        eventually(lambda: _is_full(connection, flood))
        assert httpx.get(f"{proxy.url}/health").status_code == 200
        engine.release()


def _is_full(connection: socket.socket, data: bytes) -> bool:
    try:
        while connection.send(data):
            pass
    except BlockingIOError:
        return True
    return False


@pytest.mark.parametrize("status", [401, 408, 413])
def test_after_a_refusal_the_connection_ends_and_swallows_no_more_than_a_body(
    start_proxy: Callable[..., ProxyServer], status: int
) -> None:
    keys = ["secret"] if status == 401 else []
    proxy = start_proxy(proxy={"api_keys": keys, "max_body_bytes": 100_000, "body_timeout_s": 0.2})
    size = 200_000_000 if status != 408 else 9
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n{" % size)
        answer = connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 %d" % status)
        assert b"connection: close" in answer
        sent = 0
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 200_000_000:
                sent += connection.send(b"x" * 65536)
        assert sent < 200_000_000
    eventually(lambda: len(proxy.server.server_state.connections), equals=0)


@pytest.mark.parametrize(
    "rest",
    [
        b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n\r\n",
    ],
)
def test_nothing_that_begins_and_does_not_end_keeps_a_connection(
    start_proxy: Callable[..., ProxyServer], rest: bytes
) -> None:
    # A slow machine sends the head in time.
    proxy = start_proxy(proxy={"header_timeout_s": 3.0, "keep_alive_s": 3})
    assert exchange(proxy.port, rest).startswith(b"HTTP/1.1 200")


def test_leaving_is_noticed_while_the_work_of_the_request_before_goes_on(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    body = json.dumps({**CHAT, "ragboost": {"documents": ["one text", "another"]}}).encode()
    request = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (
        URL.encode(),
        len(body),
        body,
    )
    for count in range(1, 11):
        with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
            connection.sendall(request)
            assert connection.recv(65536)
            engine.misbehave(hold=True)
            connection.sendall(request)
            eventually(lambda: engine.num_active, equals=1)
        eventually(lambda count=count: engine.num_cancelled, equals=count)  # type: ignore[misc]
        engine.behave()


@pytest.mark.parametrize(
    "target", [b"/v1/a%0ab", b"/%0a", b"/%0d%0ax:%20y", b"/%1b[31m", b"/a%00", b"*", b"/a?b?c"]
)
def test_odd_targets_pass_as_they_are(
    start_proxy: Callable[..., ProxyServer], target: bytes
) -> None:
    with raw_backend(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as (url, requests):
        proxy = start_proxy(backend={"url": url})
        head = b"OPTIONS %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % target
        assert exchange(proxy.port, head).startswith(b"HTTP/1.1 200")
        (passed,) = [one for one in requests if one.startswith(b"OPTIONS")]  # beside probes
        assert passed.startswith(b"OPTIONS %b HTTP/1.1\r\n" % target)


def test_control_characters_in_a_path_are_logged_escaped(
    proxy: ProxyServer, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine.misbehave(drop=True)
    head = b"GET /a%0d%1b[31m%00 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert exchange(proxy.port, head).startswith(b"HTTP/1.1 502")
    assert r"/a\r\x1b[31m\x00" in caplog.text
    assert not any(character in caplog.text for character in "\r\x1b\x00")


def test_an_http_1_0_client_gets_a_stream_and_the_end_of_the_connection(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    body = json.dumps({**CHAT, "stream": True}).encode()
    head = b"POST %b HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % (URL.encode(), len(body))
    answer = exchange(proxy.port, head + body)
    headers, _, content = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in headers
    assert all(piece in content for piece in engine.stream_pieces(engine.requests[-1]))


@pytest.mark.parametrize(
    ("response", "status"),
    [
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\netag: x\r\n\r\n", 304),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204),
        (b"HTTP/1.1 599 Odd\r\ncontent-length: 2\r\n\r\nok", 599),
        (b"HTTP/1.1 999 Odd\r\ncontent-length: 2\r\n\r\nok", 502),  # no status of HTTP
    ],
)
def test_unusual_responses_are_relayed_and_the_connection_stays_usable(
    start_proxy: Callable[..., ProxyServer], response: bytes, status: int
) -> None:
    request = b"GET /v1/x HTTP/1.1\r\nhost: x\r\n"
    with raw_backend(response) as (url, _):
        proxy = start_proxy(backend={"url": url})
        answer = exchange(proxy.port, request + END + request + b"connection: close" + END)
    assert answer.count(b"HTTP/1.1 %d " % status) == 2
    assert answer.endswith(response.partition(END)[2])
    assert (b"etag: x" in answer) == (b"etag: x" in response)


@pytest.mark.parametrize("depth", [30, 300, 900, 2000, 200_000])
@pytest.mark.parametrize("field", ["usage", "content", "tool_calls", "x"])
@pytest.mark.parametrize("stream", [False, True])
def test_deeply_nested_responses_are_relayed_whole(
    start_proxy: Callable[..., ProxyServer], stream: bool, field: str, depth: int
) -> None:
    deep = "[" * depth + "]" * depth
    fields: dict[str, Any] = {"content": "x", "usage": 1, "tool_calls": 1, "x": 1, field: "DEEP"}
    message = {
        "role": "assistant",
        "content": fields["content"],
        "tool_calls": fields["tool_calls"],
    }
    answer = {
        "choices": [{"index": 0, "delta" if stream else "message": message}],
        "usage": {"prompt_tokens": fields["usage"]},
        "x": fields["x"],
    }
    body = json.dumps(answer).replace('"DEEP"', deep).encode()
    body = b"data: " + body + b"\n\ndata: [DONE]\n\n" if stream else body
    kind = b"text/event-stream" if stream else b"application/json"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n" % (kind, len(body))
    with raw_backend(head + body) as (url, _):
        proxy = start_proxy(backend={"url": url})
        received = httpx.post(proxy.url + URL, json={**CHAT, "stream": stream})
        assert (received.status_code, received.content) == (200, body)
        assert read_metric(proxy.url, "ragboost_requests_total", outcome="ok") == 1


def test_a_request_that_outlasts_the_drain_time_gets_an_error_in_openai_shape(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy(proxy={"drain_s": 0})
    engine.misbehave(hold=True)
    with open_request(proxy.port, URL, CHAT) as connection:
        eventually(lambda: engine.num_active, equals=1)
        proxy.server.should_exit = True
        answer = b""
        while data := connection.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 503")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "503"
