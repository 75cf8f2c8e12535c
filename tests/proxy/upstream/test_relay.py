"""What passes the proxy passes unchanged, and nothing more often than it should."""

import gzip
import http.client
import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.sockets import exchange

CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
BOOSTED = {**CHAT, "ragboost": {"documents": ["one text", "another text"]}}


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
def test_any_method_path_query_and_body_pass_untouched(
    client: httpx.Client, engine: FakeEngine, method: str
) -> None:
    body = b"\x00\xff any bytes" if method != "GET" else b""
    answer = client.request(method, "/some/%20odd%2Fpath//x?q=a%2Bb&q=&z", content=body)
    received = engine.requests[-1]
    assert answer.status_code == 200
    assert (received.method, received.body) == (method, body)
    assert received.path == "/some/%20odd%2Fpath//x?q=a%2Bb&q=&z"
    assert received.header("content-length") == (str(len(body)) if body else None)


def test_request_headers_pass_but_hop_by_hop_and_nominated_ones_do_not(
    client: httpx.Client, engine: FakeEngine
) -> None:
    client.get(
        "/v1/models",
        headers={
            "authorization": "Bearer secret",
            "proxy-authorization": "Basic leak",
            "connection": "keep-alive, x-nominated",
            "x-nominated": "leak",
            "te": "trailers",
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "x-request-id": "mine",
            "user-agent": "ua",
            "x-odd": "caf\u00e9".encode(),
        },
    )
    received = engine.requests[-1]
    names = {name.lower() for name, _ in received.headers}
    assert received.header("authorization") == "Bearer secret"
    assert (
        received.header(
            "traceparent",
        )
        is not None
    )
    assert received.header("x-request-id") == "mine"
    assert received.header("user-agent") == "ua"
    assert received.header("x-odd") == "caf\u00e9".encode().decode("latin-1")
    assert not names & {"proxy-authorization", "x-nominated", "te", "keep-alive"}


def test_repeated_headers_and_raw_values_of_an_answer_pass(
    client: httpx.Client, engine: FakeEngine
) -> None:
    headers = {"x-request-id": "theirs", "retry-after": "7", "x-should-retry": "false"}
    engine.misbehave(status=429, body=b'{"object":"error","message":"busy"}', headers=headers)
    answer = client.post("/v1/chat/completions", json=BOOSTED)
    assert answer.status_code == 429
    assert answer.content == b'{"object":"error","message":"busy"}'
    assert {name: answer.headers[name] for name in headers} == headers
    assert len(engine.requests) == 1


def test_a_request_id_is_made_returned_and_sent_on(
    client: httpx.Client, engine: FakeEngine
) -> None:
    answer = client.post("/v1/chat/completions", json=CHAT)
    assert answer.headers["x-request-id"] == engine.requests[-1].header("x-request-id")
    assert len(answer.headers["x-request-id"]) == 32


def test_a_request_without_documents_is_forwarded_byte_for_byte(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = b'{ "model":"m", "messages" : [ {"role":"user","content":"\\u00e9"} ], "rid": 1e3 }'
    answer = client.post("/v1/chat/completions", content=body)
    assert engine.requests[-1].body == body
    assert answer.headers["x-ragboost-bypass"] == "no_documents"


def test_answers_pass_byte_for_byte(client: httpx.Client, engine: FakeEngine) -> None:
    direct = httpx.post(f"{engine.url}/v1/chat/completions", json=CHAT)
    engine.cache.clear()
    through = client.post("/v1/chat/completions", json=CHAT)
    assert through.content == direct.content
    assert through.headers["content-length"] == str(len(direct.content))


def test_compressed_answers_pass_as_they_are(client: httpx.Client, engine: FakeEngine) -> None:
    packed = gzip.compress(b'{"ok": true}')
    engine.misbehave(status=200, body=packed, headers={"content-encoding": "gzip"})
    with client.stream("GET", "/v1/models") as answer:
        assert b"".join(answer.iter_raw()) == packed


@pytest.mark.parametrize("cut", [None, 1, 7, 64])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_streams_pass_byte_for_byte_wherever_they_are_cut(
    client: httpx.Client, engine: FakeEngine, path: str, cut: int | None
) -> None:
    engine.misbehave(cut_bytes=cut)
    body = {"model": "m", "stream": True, "prompt": "why?", **({} if "chat" not in path else CHAT)}
    through = client.post(path, json=body)
    assert through.content == b"".join(engine.stream_pieces(engine.requests[-1]))
    assert through.headers["content-type"] == "text/event-stream; charset=utf-8"


@pytest.mark.parametrize("cut", [None, 1, 7, 64])
def test_the_usage_event_that_we_ask_for_is_taken_out_again(
    client: httpx.Client, engine: FakeEngine, cut: int | None
) -> None:
    engine.misbehave(cut_bytes=cut)
    through = client.post("/v1/chat/completions", json={**BOOSTED, "stream": True})
    sent = engine.requests[-1]
    assert sent.json["stream_options"] == {"include_usage": True}
    whole = b"".join(engine.stream_pieces(sent))
    events = [event + b"\n\n" for event in whole.split(b"\n\n") if event]
    assert through.content == b"".join(event for event in events if b'"usage"' not in event)
    assert (
        f'ragboost_prompt_tokens_total{{arm=""}} {sent.prompt_tokens}.0'
        in client.get("/metrics").text
    )


def test_a_usage_event_that_the_caller_asked_for_stays(
    client: httpx.Client, engine: FakeEngine
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": False}
    body = {**BOOSTED, "stream": True, "stream_options": options}
    through = client.post("/v1/chat/completions", json=body)
    sent = engine.requests[-1]
    assert sent.json["stream_options"] == options
    assert through.content == b"".join(engine.stream_pieces(sent))
    assert (
        f'ragboost_prompt_tokens_total{{arm=""}} {sent.prompt_tokens}.0'
        in client.get("/metrics").text
    )


def test_unknown_fields_big_integers_and_odd_spacing_survive_boosting(
    client: httpx.Client, engine: FakeEngine
) -> None:
    body = (
        b'{"model":"m", "seed": 123456789012345678901234567890, "x" : {"y": [1.0, 1e2]},'
        b'"messages":[ {"role": "system", "content": "be \\u0062rief"} ,'
        b'{"role":"user","content":"why?","n":12345678901234567890123}],'
        b'"ragboost":{"documents":["t"]}}'
    )
    client.post("/v1/chat/completions", content=body)
    sent = engine.requests[-1].body
    assert b'"seed":123456789012345678901234567890' in sent
    assert b'{"y": [1.0, 1e2]}' in sent
    assert b'{"role": "system", "content": "be \\u0062rief"}' in sent
    assert b"12345678901234567890123" in sent
    assert b"ragboost" not in sent


def test_lone_surrogates_survive_boosting(client: httpx.Client, engine: FakeEngine) -> None:
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"a\\ud800b"}],'
        b'"ragboost":{"documents":["doc \\udfff"]}}'
    )
    answer = client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 200
    assert b"a\\ud800b" in engine.requests[-1].body
    assert b"doc \\udfff" in engine.requests[-1].body


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"messages":"\xff"}', b"{}" * 3],
)
def test_bodies_that_are_no_json_object_are_the_backends_affair(
    client: httpx.Client, engine: FakeEngine, body: bytes
) -> None:
    answer = client.post("/v1/chat/completions", content=body)
    assert answer.status_code == 200
    assert engine.requests[-1].body == body
    assert answer.headers["x-ragboost-bypass"] == "malformed_body"


def test_head_requests_keep_their_length_and_have_no_body(proxy: ProxyServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port)
    connection.request("HEAD", "/v1/models")
    answer = connection.getresponse()
    assert answer.read() == b""
    assert int(answer.headers["content-length"]) > 0
    connection.close()


def test_a_refused_connection_is_a_502_in_openai_shape(
    start_proxy: Callable[..., ProxyServer], unused_port: int
) -> None:
    proxy = start_proxy(backend={"url": f"http://127.0.0.1:{unused_port}"})
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "backend_connection_error"
    assert httpx.get(f"{proxy.url}/ready").status_code == 503
    assert httpx.get(f"{proxy.url}/health").status_code == 200


def test_a_backend_that_never_answers_is_a_504(
    engine: FakeEngine, start_proxy: Callable[..., ProxyServer]
) -> None:
    proxy = start_proxy(backend={"read_timeout_s": 0.2})
    engine.misbehave(hold=True)
    answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT)
    assert answer.status_code == 504
    eventually(lambda: len(engine.requests), equals=1)


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_an_error_status_is_never_tried_again(
    client: httpx.Client, engine: FakeEngine, status: int
) -> None:
    engine.misbehave(status=status)
    assert client.post("/v1/chat/completions", json=CHAT).status_code == status
    assert len(engine.requests) == 1


def test_a_backend_that_drops_a_new_connection_is_not_asked_again(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.misbehave(drop=True)
    assert client.post("/v1/chat/completions", json=CHAT).status_code == 502
    assert len(engine.requests) == 1


def test_a_post_that_the_backend_has_read_is_not_sent_again(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.misbehave(drop_reused=True)
    answers = [client.post("/v1/chat/completions", json=CHAT).status_code for _ in range(2)]
    assert answers == [200, 502]
    assert len(engine.requests) == 2


@pytest.mark.parametrize(
    ("method", "headers"), [("GET", {}), ("PUT", {}), ("POST", {"idempotency-key": "k"})]
)
def test_a_request_that_may_be_repeated_is_sent_again(
    client: httpx.Client, engine: FakeEngine, method: str, headers: dict[str, str]
) -> None:
    engine.misbehave(drop_reused=True)
    answers = [client.request(method, "/v1/x", headers=headers).status_code for _ in range(2)]
    assert answers == [200, 200]
    assert len(engine.requests) == 3


def test_a_stream_that_dies_between_events_ends_with_an_error_event(
    client: httpx.Client, engine: FakeEngine
) -> None:
    engine.misbehave(die_after_chunks=3)
    answer = client.post("/v1/chat/completions", json={**CHAT, "stream": True})
    last = answer.content.rstrip().split(b"\n\n")[-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "502"


@pytest.mark.parametrize("body", [CHAT, BOOSTED])
def test_a_stream_that_dies_inside_an_event_is_cut_after_all_that_came(
    client: httpx.Client, engine: FakeEngine, body: dict[str, Any]
) -> None:
    engine.misbehave(die_after_chunks=3, cut_bytes=50)
    received: list[bytes] = []
    with (
        client.stream("POST", "/v1/chat/completions", json={**body, "stream": True}) as answer,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        received.extend(answer.iter_raw())
    assert b"".join(received) == b"".join(engine.stream_pieces(engine.requests[-1])[:3])


def test_three_hundred_requests_are_upstream_at_the_same_time(
    engine: FakeEngine, proxy: ProxyServer
) -> None:
    engine.misbehave(hold=True)
    body = json.dumps(CHAT).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(
        body
    )
    connections = []
    for _ in range(300):
        connections.append(socket.create_connection(("127.0.0.1", proxy.port)))
        connections[-1].sendall(head + body)
    eventually(lambda: engine.num_active, equals=300)
    for connection in connections:
        connection.close()
    eventually(lambda: engine.num_cancelled, equals=300)


def test_a_request_with_two_lengths_is_refused(proxy: ProxyServer, engine: FakeEngine) -> None:
    answer = exchange(
        proxy.port,
        b"POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\n",
    )
    assert answer.startswith(b"HTTP/1.1 400")
    assert engine.requests == []


def test_client_connections_do_not_wait_to_fill_packets(proxy: ProxyServer) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        connection.recv(1000)
        (protocol,) = proxy.server.server_state.connections
        accepted = protocol._socket.get_extra_info("socket")  # type: ignore[union-attr]
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
