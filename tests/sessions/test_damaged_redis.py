"""A server that sends anything but what Redis would: errors in our words, and bounded memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from ragboost.chunk_cache.store.remote.redis import RedisDriver
from ragboost.config import SessionSettings
from ragboost.errors import SessionStoreError, StoreUnavailableError
from ragboost.sessions import ChatSession
from ragboost.sessions.redis import RedisStore
from tests.fakes.proxy import ProxyServer

pytest.importorskip("redis", reason="needs the extra redis")

SECRET = b"10.1.2.3 internal words"
BULK = b"$%d\r\n%b\r\n" % (len(SECRET), SECRET)
REPLIES = {
    "status": b"+OK\r\n",
    "integer": b":1\r\n",
    "huge integer": b":" + b"9" * 5000 + b"\r\n",
    "no integer": b":abc\r\n",
    "text": BULK,
    "nil": b"$-1\r\n",
    "nil array": b"*-1\r\n",
    "empty array": b"*0\r\n",
    "array of integers": b"*2\r\n:1\r\n:2\r\n",
    "array of odd length": b"*3\r\n" + BULK * 3,
    "array of nil": b"*2\r\n$-1\r\n$-1\r\n",
    "nested array": b"*2\r\n*1\r\n" + BULK + b"*1\r\n" + BULK,
    "deeply nested array": b"*1\r\n" * 5000 + b":1\r\n",
    "no UTF-8": b"$2\r\n\xff\xfe\r\n",
    "error": b"-ERR " + SECRET + b"\r\n",
    "wrong type": b"-WRONGTYPE " + SECRET + b"\r\n",
    "loading": b"-LOADING " + SECRET + b"\r\n",
    "moved": b"-MOVED 1 10.1.2.3:6379\r\n",
    "moved nowhere": b"-MOVED internal words\r\n",
    "no length": b"$abc\r\n",
    "negative length": b"$-5\r\n",
    "length without end": b"$1073741824\r\n" + bytes(1 << 16),
    "array without end": b"*1073741824\r\n" + b":1\r\n" * 10_000,
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "line without end": b"+" + bytes(1 << 17),
    "cut": b"$10\r\nabc",
    "nothing": b"",
}
ENDS = ("length without end", "array without end", "line without end", "cut", "nothing")


class DamagedServer:
    """Answers every command but those of the handshake with one reply."""

    def __init__(self, reply: bytes, *, is_last: bool = False, is_endless: bool = False) -> None:
        self.url = ""
        self.num_bytes = 0  # sent behind an endless reply
        self._reply, self._is_last, self._is_endless = reply, is_last, is_endless

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.CancelledError):
            while header := await reader.readline():
                words = []
                for _ in range(int(header[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                if words[0].upper() in (b"CLIENT", b"HELLO", b"SELECT"):
                    writer.write(b"+OK\r\n")
                    continue
                writer.write(self._reply)
                while self._is_endless and self.num_bytes < 1 << 30:
                    writer.write(bytes(1 << 20))
                    self.num_bytes += 1 << 20
                    await writer.drain()
                if self._is_last:
                    break
                await writer.drain()
        writer.close()


@asynccontextmanager
async def damaged(reply: bytes, **options: bool) -> AsyncIterator[DamagedServer]:
    damaged = DamagedServer(reply, **options)
    server = await asyncio.start_server(damaged.serve, "127.0.0.1", 0)
    async with server:
        damaged.url = f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield damaged


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
    async with damaged(REPLIES[kind], is_last=kind in ENDS) as server:
        driver = RedisDriver(server.url)

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
