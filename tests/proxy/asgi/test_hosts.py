"""Web pages cannot use a proxy on the machine of the one who looks at them."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings

CHAT = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
REQUESTS = (("POST", "/v1/chat/completions"), ("OPTIONS", "/v1/models"), ("GET", "/dashboard/data"))

Serve = Callable[..., ProxyServer]


@pytest.fixture
def serve(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """Start what `ragboost serve` would start, in a thread."""
    started: list[ProxyServer] = []

    def run(**proxy: Any) -> ProxyServer:
        settings = proxy_settings(engine.url, proxy=proxy)
        started.append(ProxyServer(settings, is_guarded=True).__enter__())
        return started[-1]

    yield run
    for server in started:
        server.__exit__()


def post(proxy: ProxyServer, **headers: str) -> int:
    return httpx.post(f"{proxy.url}/v1/chat/completions", json=CHAT, headers=headers).status_code


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:80",
        "localhost:8080",
        "LOCALHOST.",
        "[::1]:1",
        "127.9.9.9",
        "app.localhost:3000",
    ],
)
def test_local_hosts_and_origins_are_accepted(serve: Serve, host: str) -> None:
    proxy = serve()
    assert post(proxy, host=host) == 200
    assert post(proxy, origin=f"http://{host}") == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[::1",
        "[::]",
        "0.0.0.0",
        "localhost@evil.example",
        "evil.example#localhost",
        "evil.example@127.0.0.1",
        "127.0.0.1/evil.example",
        "localhost\\evil.example",
        "x",
    ],
)
def test_other_hosts_and_origins_are_a_403_that_names_the_way_out(
    serve: Serve, engine: FakeEngine, host: str
) -> None:
    proxy = serve()
    for headers in ({"host": host}, {"origin": f"https://{host}"}, {"origin": "null"}):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("OPTIONS", "/v1/models"),
            ("GET", "/dashboard/data"),
        ):
            answer = httpx.request(method, proxy.url + path, headers=headers)
            assert answer.status_code == 403
            message = answer.json()["error"]["message"]
            assert "proxy.allowed_hosts" in message
            assert "proxy.api_keys" in message
    assert engine.requests == []


def test_the_operator_may_allow_further_hosts(serve: Serve) -> None:
    proxy = serve(allowed_hosts=["Rag.example"])
    assert post(proxy, host="rag.example:443", origin="https://rag.example") == 200
    assert post(proxy, host="other.example") == 403


def test_with_keys_any_host_is_accepted(serve: Serve) -> None:
    proxy = serve(api_keys=["k"])
    assert post(proxy, host="evil.example", authorization="Bearer k") == 200
    assert post(proxy, host="evil.example") == 401


def test_a_proxy_that_others_may_reach_accepts_any_host(serve: Serve) -> None:
    """Probes and clients of a container use names that the proxy cannot know."""
    proxy = serve(host="0.0.0.0", insecure=True)
    assert post(proxy, host="ragboost.default.svc:8080") == 200
