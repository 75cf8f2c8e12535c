"""Fixtures: an HTTP client of the proxy, and its connections to backends on a slow machine."""

from collections.abc import Iterator

import httpx
import pytest

from ragboost.proxy.upstream import client as upstream_client
from tests.eventually import DEADLINE_S
from tests.fakes.proxy import ProxyServer


@pytest.fixture
def client(proxy: ProxyServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url) as client:
        yield client


@pytest.fixture(autouse=True)
def idle_connections_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a connection be used again by the next request, however late that comes."""
    monkeypatch.setattr(upstream_client, "_KEEPALIVE_S", DEADLINE_S)
