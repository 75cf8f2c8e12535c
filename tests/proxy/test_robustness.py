"""The rest of the failures in docs/reference/failures.md: failures do not spread, nothing is capped
in silence, and limits hold as they are shipped."""

import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.eventually import eventually
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer

URL = "/v1/chat/completions"
CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}


def test_a_refusal_of_the_backend_keeps_what_clients_obey(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    told = {"retry-after": "7", "retry-after-ms": "7000", "x-should-retry": "true"}
    engine.misbehave(status=429, headers=told)
    answer = httpx.post(proxy.url + URL, json=CHAT)
    assert answer.status_code == 429
    assert {name: answer.headers[name] for name in told} == told
    assert len(engine.requests) == 1


@pytest.mark.parametrize("wrong", [{"status": 500}, {"drop": True}])
def test_failures_do_not_close_the_way_to_the_only_backend(
    proxy: ProxyServer, engine: FakeEngine, wrong: dict[str, object]
) -> None:
    engine.misbehave(**wrong)
    with httpx.Client(base_url=proxy.url) as client:
        assert all(client.post(URL, json=CHAT).status_code >= 500 for _ in range(20))
        engine.behave()
        assert client.post(URL, json=CHAT).status_code == 200


def test_three_hundred_slow_requests_are_all_answered_at_the_same_time(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    engine.misbehave(hold=True)
    limits = httpx.Limits(max_connections=300)
    with (
        httpx.Client(base_url=proxy.url, limits=limits) as client,
        ThreadPoolExecutor(300) as pool,
    ):
        asked = [pool.submit(client.post, URL, json=CHAT) for _ in range(300)]
        eventually(lambda: engine.num_active, equals=300)
        engine.release()
        assert [answer.result().status_code for answer in asked] == [200] * 300


def test_sixty_four_megabytes_are_refused_without_being_read(
    proxy: ProxyServer, engine: FakeEngine
) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 67108864\r\n\r\n{"
        )
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert engine.requests == []


def test_a_head_of_a_megabyte_is_refused(proxy: ProxyServer, engine: FakeEngine) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port)) as connection:
        connection.sendall(b"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-large: " + b"y" * 1_000_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 431")
    assert engine.requests == []
