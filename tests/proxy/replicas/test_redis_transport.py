"""Loads and prompts that replicas of the proxy exchange, through a real Redis server."""

import itertools
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import msgspec
import pytest

from ragboost.booster.tenants import TenantKey, Tenants
from ragboost.cache_sync.follower import CacheFollower
from ragboost.cache_sync.prompt_layout import PromptLayout
from ragboost.config import Settings
from ragboost.proxy.replicas import redis_transport
from ragboost.proxy.replicas.messages import (
    LoadBoard,
    LoadReport,
    MessageHandler,
    ReplicaMessage,
    SentPrompt,
    encode,
)
from ragboost.proxy.replicas.redis_transport import RedisTransport
from ragboost.proxy.sessions.redis import make_client
from ragboost.proxy.upstream.backend import Load
from ragboost.proxy.upstream.backends import Backends
from tests.eventually import eventually, eventually_async
from tests.fakes import FakeEngine
from tests.fakes.damaged_redis import ENDS, REPLIES, damaged
from tests.fakes.proxy import ProxyServer, proxy_settings
from tests.fakes.redis import PROGRAM, RedisServer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs redis-server or valkey-server")

CHANNEL = "ragboost:proxies:0"
TENANT = TenantKey("m", "")
LAYOUT = PromptLayout(TENANT, ("a", "text before b"), (100, 50), (5, 5), 20, 200)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as redis:
        yield redis


class Replica:
    """One process's part in the exchange."""

    def __init__(self, url: str, *, prefix: str = "ragboost") -> None:
        section = {"store": "redis", "url": url, "prefix": prefix}
        self.settings = Settings.model_validate({"session": section})
        backends, self.tenants = Backends.of(self.settings).all, Tenants(self.settings)
        self.backend = backends[0]
        self.follower = CacheFollower(self.backend.name, self.tenants)
        followers = {self.backend.name: self.follower}
        self.board = LoadBoard(backends, on_change=lambda: None)
        self.learned = 0
        handler = MessageHandler(backends, followers, self.board, on_learned=self._learn)
        self.transport = RedisTransport(self.settings.session, handler)

    @property
    def num_nodes(self) -> int:
        return self.tenants.num_nodes

    def _learn(self) -> None:
        self.learned += 1

    async def open(self) -> None:
        await self.board.open()
        await self.transport.open()

    async def close(self) -> None:
        await self.transport.close()
        await self.board.close()


async def opened(url: str, number: int) -> list[Replica]:
    replicas = [Replica(url) for _ in range(number)]
    for each in replicas:
        await each.open()
    return replicas


async def publish(replica: Replica, *messages: bytes) -> None:
    """Publish messages when the replica listens."""
    client: Any = make_client(replica.settings.session, max_reply_bytes=1 << 20)
    while not await client.publish(CHANNEL, b""):
        pass
    for each in messages:
        await client.publish(CHANNEL, each)
    await client.aclose()


def told(prompt: SentPrompt) -> bytes:
    return encode(ReplicaMessage("two", prompts=(prompt,)))


@pytest.fixture
async def replicas(redis: RedisServer) -> AsyncIterator[list[Replica]]:
    replicas = await opened(redis.url, 2)
    yield replicas
    for replica in replicas:
        await replica.close()


@pytest.mark.asyncio
async def test_a_replica_learns_what_another_has_sent_and_not_its_own(redis: RedisServer) -> None:
    one, other = replicas = await opened(redis.url, 2)

    def tell_and_look() -> int:  # a message before the subscription is lost
        one.follower.on_sent("id", LAYOUT, cached_tokens=0)
        return other.learned

    await eventually_async(tell_and_look)
    other.follower.on_sent("id", LAYOUT, cached_tokens=0)
    await eventually_async(lambda: one.learned)

    assert other.num_nodes == 1
    assert one.learned == 1  # of `other` alone
    for each in replicas:
        await each.close()


@pytest.mark.asyncio
async def test_deployments_on_one_server_do_not_hear_each_other(redis: RedisServer) -> None:
    one, two = await opened(redis.url, 2)
    strangers = [
        Replica(redis.url, prefix="ragboost-2"),
        Replica(f"{redis.url}?db=1"),
    ]
    for each in strangers:
        await each.open()

    def tell_and_look() -> int:
        one.follower.on_sent("id", LAYOUT, cached_tokens=0)
        for stranger in strangers:
            stranger.follower.on_sent("id", LAYOUT, cached_tokens=0)
        return two.learned

    await eventually_async(tell_and_look)
    with redis.client() as client:
        channels = ["ragboost:proxies:0", "ragboost-2:proxies:0", "ragboost:proxies:1"]
        await eventually_async(
            lambda: [number for _, number in client.pubsub_numsub(*channels)] == [2, 1, 1]
        )
    assert [stranger.learned for stranger in strangers] == [0, 0]
    for each in (one, two, *strangers):
        await each.close()


@pytest.mark.asyncio
async def test_rubbish_and_impossible_layouts_are_ignored(redis: RedisServer) -> None:
    (one,) = await opened(redis.url, 1)
    key = one.backend.key
    impossible = [
        LAYOUT._replace(tokens=(100,)),
        LAYOUT._replace(tokens=(100, -5)),
        LAYOUT._replace(tokens=(100, 0)),
        LAYOUT._replace(frames=()),
        LAYOUT._replace(scale=-1.0),
        LAYOUT._replace(scale=float("inf")),
        LAYOUT._replace(scale=4.1),
        LAYOUT._replace(unknown_tokens=-1),
        LAYOUT._replace(unknown_tokens=2**63),
        LAYOUT._replace(documents=(), tokens=(), frames=()),
        LAYOUT._replace(documents=("a", "a")),
        LAYOUT._replace(documents=("a", ("b", {"c": 1}))),
        LAYOUT._replace(documents=("a", float("nan"))),
        LAYOUT._replace(documents=("a", [[]])),
        LAYOUT._replace(tenant=TenantKey("m" * 1000, "")),
        LAYOUT._replace(tenant=TenantKey("m", "\n")),
        LAYOUT._replace(tenant=TenantKey("m", "", "t" * 1000)),
    ]
    bad = [b"", b"\xff", msgspec.msgpack.encode({"a": 1}), b"x" * 5_000_000]
    deep = b"\x94\xaaSentPrompt\xa1b\xc0\x96\x93\xa1m\xa0\xa0" + b"\x91" * 100_000
    bad.append(b"\x94\xaeReplicaMessage\xa3two\xc0\x91" + deep)
    bad += [told(SentPrompt(key, "i", each)) for each in impossible]
    bad.append(told(SentPrompt("http://another-backend", "i", LAYOUT)))
    bad.append(told(SentPrompt(key, "i" * 1000, LAYOUT)))

    await publish(one, *bad, told(SentPrompt(key, "good", LAYOUT)))

    await eventually_async(lambda: one.num_nodes, equals=1)
    assert set(one.follower._layouts) == {"good"}
    assert len(one.tenants) == 1
    await one.close()


@pytest.mark.asyncio
async def test_many_prompts_of_many_documents_at_once_all_arrive(redis: RedisServer) -> None:
    one, other = replicas = await opened(redis.url, 2)
    await publish(one)
    many = tuple("b" * 16 + f"{i:032}" for i in range(1000))
    layout = PromptLayout(TENANT, many, (100,) * 1000, (5,) * 1000, 20, 110_000)

    for number in range(100):
        one.follower.on_sent(str(number), layout, cached_tokens=0)

    await eventually_async(lambda: set(other.follower._layouts), equals=set(map(str, range(100))))
    for each in replicas:
        await each.close()


def test_a_replica_orders_by_what_another_has_sent(redis: RedisServer) -> None:
    numbers = itertools.count()
    session = {"store": "redis", "url": redis.url}
    with (
        FakeEngine(events=True) as engine,
        ProxyServer(proxy_settings(engine.url, session=session)) as one,
        ProxyServer(proxy_settings(engine.url, session=session)) as two,
    ):

        def ask(proxy: ProxyServer, documents: list[str]) -> int:
            body = {
                "model": "m",
                "messages": [{"role": "user", "content": "who?"}],
                "ragboost": {"documents": documents},
            }
            answer = httpx.post(f"{proxy.url}/v1/chat/completions", json=body).json()
            cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return cached

        def cached_for_the_other() -> int:
            number = next(numbers)
            documents = [f"Document {i} of {number}. " + f"about{i} " * 60 for i in range(5)]
            ask(one, documents)
            return ask(two, documents[::-1])

        # In the order given, nothing would be cached; a layout takes a moment to arrive.
        eventually(lambda: cached_for_the_other() > 100)
        metrics = httpx.get(f"{two.url}/metrics").text
        learned = re.search(r"^ragboost_replica_prompts_learned_total (.+)$", metrics, re.MULTILINE)
        assert learned is not None
        assert float(learned[1]) > 0


@pytest.mark.asyncio
async def test_a_replica_hears_the_load_of_the_other_and_forgets_a_dead_one(
    replicas: list[Replica],
) -> None:
    one, two = replicas
    one.backend.load.running = one.backend.load.assigned = 3

    await eventually_async(lambda: two.backend.elsewhere, equals=Load(3, 3, 0))
    assert one.backend.elsewhere == Load()

    await one.transport.close()
    await eventually_async(lambda: two.backend.elsewhere, equals=Load())


@pytest.mark.asyncio
async def test_a_dead_server_is_reported_and_the_exchange_goes_on_when_it_is_back(
    redis: RedisServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    one.backend.load.running = one.backend.load.assigned = 1
    await eventually_async(lambda: two.backend.elsewhere, equals=Load(1, 1, 0))

    redis.kill()
    await eventually_async(lambda: one.transport.problem is not None)
    await eventually_async(lambda: two.backend.elsewhere, equals=Load())

    redis.start()
    await eventually_async(lambda: two.backend.elsewhere, equals=Load(1, 1, 0))
    await eventually_async(lambda: one.transport.problem is None)


@pytest.mark.asyncio
async def test_rubbish_on_the_channel_is_ignored(
    redis: RedisServer, replicas: list[Replica]
) -> None:
    one, two = replicas
    deep = b"\x94\xaeReplicaMessage\xa1a" + b"\x91" * 100_000
    for data in (b"", b"\xff", b"x" * 100_000, deep):
        await one.transport._client.publish(CHANNEL, data)
    endless = ReplicaMessage("x" * 1000, LoadReport({one.backend.key: Load(9, 9, 9)}))
    await one.transport._client.publish(CHANNEL, encode(endless))
    one.backend.load.running = one.backend.load.assigned = 2

    await eventually_async(lambda: two.backend.elsewhere, equals=Load(2, 2, 0))


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", REPLIES)
async def test_no_reply_of_a_damaged_server_ends_the_exchange(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_transport, "_RETRY_S", 0.0)
    async with damaged(REPLIES[kind], is_last=kind in ENDS) as server:
        replica = Replica(server.url)
        await replica.open()
        for number in range(3):
            replica.follower.on_sent(str(number), LAYOUT, cached_tokens=0)
        await eventually_async(
            lambda: server.num_replies > 5 or (server.num_replies and not replica.transport.problem)
        )
        assert not any(task.done() for task in replica.transport._tasks)
        assert "words" not in (replica.transport.problem or "")
        await replica.close()
