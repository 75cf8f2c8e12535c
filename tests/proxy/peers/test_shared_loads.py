"""Loads exchanged between replicas of the proxy through a real Redis server."""

from collections.abc import AsyncIterator, Iterator

import pytest

from ragboost.config import Settings
from ragboost.proxy.peers.load_board import LoadBoard
from ragboost.proxy.peers.shared_loads import SharedLoads
from ragboost.proxy.upstream.backends import Backend, Backends, Load
from tests.eventually import eventually_async
from tests.fakes.redis import PROGRAM, RedisServer

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server"),
]


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


class Replica:
    """One proxy's part in the exchange."""

    def __init__(self, url: str, name: str) -> None:
        settings = Settings.model_validate({"session": {"store": "redis", "url": url}})
        self.backend: Backend = Backends.of(settings).all[0]
        self.board = LoadBoard([self.backend], on_change=lambda: None)
        self.shared = SharedLoads(settings.session, self.board, name=name)

    async def open(self) -> None:
        await self.board.open()
        await self.shared.open()

    async def close(self) -> None:
        await self.shared.close()
        await self.board.close()


@pytest.fixture
async def replicas(redis: RedisServer) -> AsyncIterator[list[Replica]]:
    replicas = [Replica(redis.url, "one"), Replica(redis.url, "two")]
    for replica in replicas:
        await replica.open()
    yield replicas
    for replica in replicas:
        await replica.close()


async def test_a_replica_hears_the_load_of_the_other_and_forgets_a_dead_one(
    replicas: list[Replica],
) -> None:
    one, two = replicas
    one.backend.load.running = one.backend.load.assigned = 3

    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load(3, 3, 0))
    assert one.backend.load.elsewhere == Load()

    await one.shared.close()
    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load())


async def test_a_dead_server_is_reported_and_the_exchange_goes_on_when_it_is_back(
    redis: RedisServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    one.backend.load.running = one.backend.load.assigned = 1
    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load(1, 1, 0))

    redis.kill()
    await eventually_async(lambda: one.shared.channel.problem is not None)
    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load())

    redis.start()
    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load(1, 1, 0))
    await eventually_async(lambda: one.shared.channel.problem is None)


async def test_rubbish_on_the_channel_is_ignored(
    redis: RedisServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    deep = b"\x93\xa1a\x80" + b"\x91" * 100_000
    for data in (b"", b"\xff", b"x" * 100_000, deep):
        await one.shared.channel._client.publish("ragboost:load", data)
    one.backend.load.running = one.backend.load.assigned = 2

    await eventually_async(lambda: two.backend.load.elsewhere, equals=Load(2, 2, 0))
