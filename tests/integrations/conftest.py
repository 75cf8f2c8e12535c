"""A FakeEngine and the proxy in front of it, both on real sockets."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture
def own_loop() -> Iterator[None]:
    """An event loop that is closed: LlamaIndex leaves the one open that it makes."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
