"""What only the Redis store does: sharing, bounds, secrets, and a server that is gone."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError, SessionStoreError
from ragboost.proxy.sessions import ChatSession
from ragboost.proxy.sessions.redis import RedisStore
from tests.fakes import FakeEngine
from tests.fakes.proxy import ProxyServer
from tests.fakes.redis import PROGRAM, RedisServer
from tests.metrics import read_metric


def make(name: str, *, system: str | None = None) -> ChatSession:
    return ChatSession(name, "alice", 1.0, 1.0, system=system)


def open_store(
    server: RedisServer, *, max_bytes: int = 256 << 20, **bounds: float | str
) -> RedisStore:
    settings = SessionSettings(url=server.url, **bounds)  # type: ignore[arg-type]
    return RedisStore(settings, max_bytes=max_bytes)


async def read(store: RedisStore, name: str = "a") -> ChatSession:
    transcript = await store.read("alice", name)
    assert transcript is not None
    return transcript.session


async def turns(store: RedisStore, name: str) -> list[bytes]:
    transcript = await store.read("alice", name)
    return list(transcript.turns) if transcript else []


def new(store: RedisStore, name: str, *, system: str | None = None) -> ChatSession:
    now = store.now()
    return ChatSession(name, "alice", now, now, user="u", system=system)


async def test_two_proxies_share_a_conversation_and_one_turn_wins(
    redis_server: RedisServer,
) -> None:
    one, two = open_store(redis_server), open_store(redis_server)
    await one.create(new(one, "a"))
    for number in range(20):
        first, second = await read(one), await read(two)
        results = await asyncio.gather(
            one.append(first, b"one %d" % number), two.append(second, b"two %d" % number)
        )
        assert sorted(results) == [False, True]
    assert len(await turns(two, "a")) == (await read(two)).num_turns == 20
    await one.close()
    await two.close()


async def test_a_turn_that_is_sent_again_is_stored_once(redis_server: RedisServer) -> None:
    store = open_store(redis_server)
    await store.create(new(store, "a"))
    session = await read(store)
    assert [await store.append(session, b"1") for _ in range(2)] == [True, True]
    assert await turns(store, "a") == [b"1"]
    await store.close()


async def test_bytes_are_bounded_and_the_newest_session_stays(redis_server: RedisServer) -> None:
    store = open_store(redis_server, max_bytes=1024)
    for name in "abc":
        await store.create(new(store, name, system="x" * 500))
    assert await store.read("alice", "a") is None
    session = await read(store, "c")
    assert await store.append(session, b"x" * 5000)
    assert await store.read("alice", "b") is None
    assert len(await turns(store, "c")) == 1
    await store.delete("alice", "c")
    assert await store._client.get("ragboost:sessions:bytes") == b"0"
    await store.close()


async def test_everything_expires_without_a_proxy(redis_server: RedisServer) -> None:
    store = open_store(redis_server, ttl_s=3600.0)
    await store.create(new(store, "a"))
    await store.append(await read(store), b"1")
    keys = await store._client.keys("*")
    assert len(keys) == 7
    assert all([0 < await store._client.ttl(key) <= 7200 for key in keys])
    await store.close()


async def test_a_dead_server_fails_each_call_and_a_new_one_is_found(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[None] = []
    settings = SessionSettings(url=redis_server.url)  # type: ignore[arg-type]
    redis_server.kill()
    store = RedisStore(settings, on_failure=lambda: failures.append(None))
    await store.open()  # not an error
    for call in (store.create(make("a")), store.read("alice", "a"), store.delete("alice", "a")):
        with pytest.raises(SessionStoreError):
            await call
    with pytest.raises(SessionStoreError):
        await store.check()
    assert (len(failures), store.problem is not None) == (5, True)
    redis_server.start()
    await store.check()
    assert store.problem is None
    await store.create(new(store, "a"))
    redis_server.kill()  # also with a connection that was used
    redis_server.start()
    assert await store.read("alice", "a") is None
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert len(errors) == 1
    await store.close()


async def test_the_password_is_used_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    if PROGRAM is None:
        pytest.skip("neither redis-server nor valkey-server is on PATH")
    with RedisServer("--requirepass", "s3cret") as server, caplog.at_level(logging.DEBUG):
        settings = SessionSettings(url=f"unix://:s3cret@{server.path}")  # type: ignore[arg-type]
        right = RedisStore(settings)
        await right.create(new(right, "a"))
        await right.close()
        wrong = RedisStore(SessionSettings(url=f"unix://:wr0ng@{server.path}"))  # type: ignore[arg-type]
        with pytest.raises(SessionStoreError) as failed:
            await wrong.read("alice", "a")
        await wrong.close()
    shown = f"{settings!r} {failed.value} {wrong.problem} {caplog.text}"
    assert "s3cret" not in shown
    assert "wr0ng" not in shown


@pytest.mark.parametrize("url", [None, "http://:s3cret@h", "redis://:s3cret@h:port"])
def test_a_url_that_cannot_be_used_is_a_config_error(url: str | None) -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    with pytest.raises(ConfigError, match=r"session\.url") as refused:
        RedisStore(SessionSettings(url=url))  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)


def test_a_conversation_goes_on_at_another_proxy(
    redis_server: RedisServer, start_proxy: Callable[..., ProxyServer], engine: FakeEngine
) -> None:
    section = {"store": "redis", "url": redis_server.url}
    one, two = (start_proxy(session=section).url for _ in range(2))
    session = httpx.post(f"{one}/v1/sessions", json={"model": "m"}).json()["id"]
    for url, query in ((one, "first?"), (two, "second?"), (one, "third?")):
        path = f"{url}/v1/sessions/{session}/chat/completions"
        assert httpx.post(path, json={"query": query}).status_code == 200
    prompts = [request.prompt for request in engine.completions]
    sent = [[query in prompt for query in ("first?", "second?", "third?")] for prompt in prompts]
    assert sent == [[True, False, False], [True, True, False], [True, True, True]]


def test_without_its_server_sessions_fail_and_everything_else_goes_on(
    redis_server: RedisServer, start_proxy: Callable[..., ProxyServer]
) -> None:
    url = start_proxy(session={"store": "redis", "url": redis_server.url}).url
    session = httpx.post(f"{url}/v1/sessions", json={"model": "m"}).json()["id"]
    redis_server.kill()

    refused = httpx.post(f"{url}/v1/sessions/{session}/chat/completions", json={"query": "why?"})
    chat = {"model": "m", "messages": [{"role": "user", "content": "why?"}]}
    answered = httpx.post(f"{url}/v1/chat/completions", json=chat)
    ready = httpx.get(f"{url}/ready")

    assert (refused.status_code, answered.status_code, ready.status_code) == (503, 200, 200)
    assert ready.json()["status"] == "degraded"
    assert read_metric(url, "ragboost_session_store_failures_total") > 0
    redis_server.start()
    assert httpx.get(f"{url}/ready").json()["status"] == "ready", "though nobody stored anything"
    redis_server.kill()
    assert httpx.get(f"{url}/ready").json()["status"] == "degraded", "though nobody asked"


def test_a_full_server_is_refused_before_a_model_works(
    redis_server: RedisServer, start_proxy: Callable[..., ProxyServer], engine: FakeEngine
) -> None:
    url = start_proxy(session={"store": "redis", "url": redis_server.url}).url
    session, other = (
        httpx.post(f"{url}/v1/sessions", json={"model": "m"}).json()["id"] for _ in range(2)
    )
    path = f"{url}/v1/sessions/{session}/chat/completions"
    with redis_server.client() as redis:
        redis.config_set("maxmemory", 1)
        refused = [httpx.post(path, json={"query": f"{at}?"}) for at in range(3)]
        assert [answer.status_code for answer in refused] == [503] * 3
        assert not engine.completions
        assert httpx.get(f"{url}/v1/sessions/{session}").status_code == 200  # reads work
        assert httpx.get(f"{url}/ready").json()["sessions"] == "Redis: OutOfMemoryError"
        assert httpx.delete(f"{url}/v1/sessions/{other}").status_code == 200
        assert httpx.get(f"{url}/v1/sessions/{other}").status_code == 404
        redis.config_set("maxmemory", 0)
    assert httpx.post(path, json={"query": "now?"}).status_code == 200
    assert httpx.get(f"{url}/ready").json()["status"] == "ready"


def test_a_turn_that_cannot_be_decoded_is_gone_and_another_session_goes_on(
    redis_server: RedisServer, start_proxy: Callable[..., ProxyServer]
) -> None:
    url = start_proxy(session={"store": "redis", "url": redis_server.url}).url
    damaged, bare = (
        httpx.post(f"{url}/v1/sessions", json={"model": "m", "user": "u"}).json()["id"]
        for _ in range(2)
    )
    path = f"{url}/v1/sessions/{damaged}"
    assert httpx.post(f"{path}/chat/completions", json={"query": "why?"}).status_code == 200
    with redis_server.client() as redis:
        redis.lset(f"ragboost:sessions:turns:{damaged}", 0, b"\xc1 not msgpack")
        redis.hdel(f"ragboost:sessions:session:{bare}", "num_turns")
    again = httpx.post(f"{path}/chat/completions", json={"query": "again?"})
    assert (again.status_code, again.json()["error"]["param"]) == (410, "session_id")
    assert httpx.get(path).status_code == 410
    assert httpx.get(f"{url}/v1/sessions/{bare}").status_code == 404
    listed = httpx.get(f"{url}/v1/sessions", params={"user": "u"})
    assert [one["id"] for one in listed.json()["data"]] == [damaged]
    assert httpx.delete(path).status_code == 200


@pytest.mark.parametrize(
    "field",
    [
        {"metadata": "[1]"},
        {"metadata": "null"},
        {"metadata": '{"a": 1}'},
        {"metadata": "[" * 100_000},
        {"used_at": "nan"},
        {"created_at": "inf"},
        {"created_at": "1e400"},
        {"model": b"=\xff"},
        {"num_turns": "many"},
    ],
)
async def test_a_session_that_cannot_be_decoded_is_unknown_and_hides_no_other(
    redis_server: RedisServer, field: dict[str, str | bytes]
) -> None:
    store = open_store(redis_server)
    for name in ("good", "damaged"):
        await store.create(new(store, name))
    with redis_server.client() as redis:
        redis.hset("ragboost:sessions:session:damaged", mapping=field)
    assert await store.read("alice", "damaged") is None
    page = await store.list("alice", "u", limit=10)
    assert page is not None
    assert [session.id for session in page.sessions] == ["good"]
    await store.close()


async def test_deployments_with_other_prefixes_share_a_server(redis_server: RedisServer) -> None:
    one, two = open_store(redis_server), open_store(redis_server, prefix="two")
    await one.create(new(one, "a"))
    assert await two.read("alice", "a") is None
    await two.create(new(two, "a"))
    assert all(key.startswith((b"ragboost:", b"two:")) for key in await two._client.keys("*"))
    await one.close()
    await two.close()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of localhost, signed by itself, with its key beside it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not on PATH")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", key, "-out", certificate]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subprocess.run([*command, *names, *files], check=True, capture_output=True)
    return certificate


async def test_tls_is_used_and_the_certificate_checked(
    certificate: Path,
    unused_port: int,
    redis_server: RedisServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = certificate.with_name("key.pem")
    options = ["--port", "0", "--tls-port", str(unused_port), "--tls-auth-clients", "no"]
    options += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with RedisServer(*options, "--tls-ca-cert-file", str(certificate)):
        url = f"rediss://localhost:{unused_port}"
        trusting = RedisStore(SessionSettings(url=f"{url}?ssl_ca_certs={certificate}"))  # type: ignore[arg-type]
        await trusting.create(new(trusting, "a"))
        assert await trusting.read("alice", "a") is not None
        await trusting.close()
        doubting = RedisStore(SessionSettings(url=url))  # type: ignore[arg-type]
        with pytest.raises(SessionStoreError, match="Redis: ConnectionError"):
            await doubting.read("alice", "a")
        await doubting.close()
    assert "certificate" in caplog.text
