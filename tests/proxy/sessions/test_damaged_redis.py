"""A server that sends anything but what Redis would: errors in our words, and bounded memory."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from ragboost.config import SessionSettings
from ragboost.errors import SessionStoreError, StoreUnavailableError
from ragboost.proxy.sessions import ChatSession
from ragboost.proxy.sessions.redis import RedisStore
from tests.fakes.damaged_redis import ENDS, REPLIES, damaged
from tests.fakes.proxy import ProxyServer

pytest.importorskip("redis", reason="needs the extra redis")


@pytest.mark.parametrize("kind", REPLIES)
async def test_no_reply_is_another_error_than_that_the_store_fails(kind: str) -> None:
    async with damaged(REPLIES[kind], is_last=kind in ENDS) as server:
        store = RedisStore(SessionSettings(url=server.url))  # type: ignore[arg-type]
        now = store.now()
        session = ChatSession("a", "alice", now, now, user="u")
        failures: list[str] = []
        for call in (
            store.check(),
            store.create(session),
            store.read("alice", "a"),
            store.append(session, b"turn"),
            store.restore(session, [b"turn"]),
            store.delete("alice", "a"),
            store.list("alice", "u", limit=10),
        ):
            try:
                await call
            except SessionStoreError as error:
                failures.append(str(error))
        await store.close()
    assert len(failures) >= 2  # some replies are sensible ones to some commands
    assert not any("internal words" in text or "10.1.2.3" in text for text in failures)
    assert failures[-1].startswith("the session store fails: Redis: ")


async def test_a_reply_that_is_too_large_is_not_read() -> None:
    async with damaged(b"$1073741824\r\n", is_endless=True) as server:
        store = RedisStore(SessionSettings(url=server.url))  # type: ignore[arg-type]
        with pytest.raises(SessionStoreError, match="Redis: InvalidResponse"):
            await store.read("alice", "a")
        await store.close()
    assert server.num_bytes <= 16 << 20


@pytest.mark.parametrize("kind", REPLIES)
async def test_the_remote_store_of_chunks_fails_in_one_way(kind: str) -> None:
    remote = pytest.importorskip(
        "ragboost.chunk_cache.store.remote.redis",
        reason="needs the extra engine",
        exc_type=ImportError,
    )
    async with damaged(REPLIES[kind], is_last=kind in ENDS) as server:
        driver = remote.RedisDriver(server.url)

        def ask() -> None:
            for work in (
                lambda: driver.has("a"),
                lambda: driver.get("a", max_bytes=1 << 20),
                lambda: driver.put("a", b"value"),
                lambda: driver.remove("a"),
            ):
                with suppress(StoreUnavailableError):
                    work()
            driver.close()

        await asyncio.to_thread(ask)


def test_clients_and_readiness_get_our_words(
    start_proxy: Callable[..., ProxyServer],
) -> None:
    async def ask() -> tuple[list[httpx.Response], httpx.Response]:
        async with damaged(REPLIES["wrong type"]) as server:
            session = {"store": "redis", "url": server.url}
            url = (await asyncio.to_thread(start_proxy, session=session)).url
            async with httpx.AsyncClient(base_url=f"{url}/v1/sessions") as client:
                answers = [
                    await client.post("", json={}),
                    await client.get("", params={"user": "u"}),
                    await client.get("/a"),
                    await client.delete("/a"),
                    await client.post("/a/chat/completions", json={"query": "why?"}),
                ]
                return answers, await client.get(f"{url}/ready")

    answers, ready = asyncio.run(ask())
    assert [answer.status_code for answer in answers] == [503] * 5
    assert ready.json()["sessions"] == "Redis: ResponseError"
    assert not any("internal words" in answer.text for answer in (*answers, ready))
