"""A FakeEngine, and the proxy as a real server in front of it."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture
def proxy(engine: FakeEngine) -> Iterator[ProxyServer]:
    with ProxyServer(proxy_settings(engine.url)) as proxy:
        yield proxy


@pytest.fixture
def unused_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture
def start_proxy(engine: FakeEngine) -> Iterator[Callable[..., ProxyServer]]:
    """Start a proxy with other settings; it is stopped after the test."""
    started: list[ProxyServer] = []

    def start(**sections: dict[str, Any]) -> ProxyServer:
        started.append(ProxyServer(proxy_settings(engine.url, **sections)).__enter__())
        return started[-1]

    yield start
    for proxy in started:
        proxy.__exit__()
