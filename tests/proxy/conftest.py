"""Fixture: an HTTP client of the proxy."""

from collections.abc import Iterator

import httpx
import pytest

from tests.fakes.proxy import ProxyServer


@pytest.fixture
def client(proxy: ProxyServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=proxy.url) as client:
        yield client
