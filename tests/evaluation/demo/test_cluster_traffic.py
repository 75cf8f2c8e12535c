"""A client of the demo's cluster goes to another replica when one is down."""

import asyncio

import pytest

from ragboost.types import Document
from scripts import cluster_traffic
from scripts.cluster_traffic import ClusterClient, Talk
from tests.fakes.proxy import ProxyServer

TURNS = [(f"Question {turn}?", [Document("Shared."), Document(f"Own {turn}.")]) for turn in (0, 1)]


@pytest.mark.parametrize("is_session", [True, False])
@pytest.mark.parametrize("is_dead_first", [True, False])
def test_the_last_conversation_asks_the_replica_that_lives(
    proxy: ProxyServer,
    unused_port: int,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_session: bool,
    is_dead_first: bool,
) -> None:
    monkeypatch.setattr(cluster_traffic, "_PAUSE_S", 0.0)
    urls = [f"http://127.0.0.1:{unused_port}", proxy.url]
    talk = Talk("talk", TURNS, is_session=is_session)

    async def converse() -> ClusterClient:
        async with ClusterClient(urls if is_dead_first else urls[::-1], model="m") as client:
            await client.converse(talk)
            return client

    client = asyncio.run(converse())

    assert [turn.is_lost for turn in client.turns] == [False, False]
    assert all(turn.tries <= 2 for turn in client.turns)
    assert client.num_doubled == 0
