"""A Redis server for the tests of its store."""

from collections.abc import Iterator

import pytest

from tests.fakes.redis import PROGRAM, RedisServer


@pytest.fixture
def redis_server() -> Iterator[RedisServer]:
    pytest.importorskip("redis", reason="needs the extra redis")
    if PROGRAM is None:
        pytest.skip("neither redis-server nor valkey-server is on PATH")
    with RedisServer() as server:
        yield server
