"""Fixtures: one engine and one proxy for all conversations of a file."""

from collections.abc import Iterator

import httpx
import pytest

from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer, proxy_settings


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEngine]:
    with FakeEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: FakeEngine) -> Iterator[httpx.Client]:
    with (
        ProxyServer(proxy_settings(engine.url)) as proxy,
        httpx.Client(base_url=proxy.url) as client,
    ):
        yield client
