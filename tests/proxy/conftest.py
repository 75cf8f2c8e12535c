"""Fixtures: an HTTP client of the proxy, and its connections to backends on a slow machine."""

from collections.abc import Iterator

import httpx
import pytest

from ragboost.proxy.upstream import backend as upstream_backend
from ragboost.proxy.upstream import client as upstream_client
from tests.eventually import DEADLINE_S
from tests.fakes.proxy import ProxyServer


@pytest.fixture
def client(proxy: ProxyServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url) as client:
        yield client


@pytest.fixture(autouse=True)
def backends_have_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection be used again by the next request, however late that comes, and a backend be
    healthy, however late it answers."""
    monkeypatch.setattr(upstream_client, "_KEEPALIVE_S", DEADLINE_S)
    monkeypatch.setattr(upstream_backend, "_READY_TIMEOUT_S", DEADLINE_S)
