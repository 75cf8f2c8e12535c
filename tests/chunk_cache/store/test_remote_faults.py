"""Servers and writers that are killed cost hits, and nothing else."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ragboost.chunk_cache.store.remote import check_address, join_remote
from ragboost.chunk_cache.store.tiered import TieredStore
from ragboost.errors import ConfigError, StoreUnavailableError
from tests.chunk_cache.store.chunks import make_chunk, same
from tests.eventually import DEADLINE_S, eventually
from tests.fakes import mooncake
from tests.fakes.mooncake import MooncakeServer
from tests.fakes.redis import PROGRAM, RedisServer

ROOT = Path(__file__).resolve().parents[3]
WRITE_FOR_EVER = """
import sys
from ragboost.chunk_cache.store.remote import join_remote
from tests.chunk_cache.store.chunks import make_chunk
place = join_remote(sys.argv[1])
print("begin", flush=True)
number = 0
while True:
    place.save(str(number), make_chunk(number, num_tokens=20_000))
    number = number + 1 if number < 7 else 2  # 0 and 1 are written once, and stay whole
"""


@pytest.fixture
def mooncake_store() -> Iterator[MooncakeServer]:
    if (reason := mooncake.missing()) is not None:
        pytest.skip(reason)
    with MooncakeServer() as server:
        yield server


def open_store(address: str, now: list[float]) -> TieredStore:
    return TieredStore(remote=join_remote(address), waits=False, clock=lambda: now[0])


def load(store: TieredStore, key: str) -> object:
    store.forget([key])
    store.prefetch({key: 6})
    eventually(lambda: not store.is_loading([key]))
    return store.get(key)


@pytest.mark.process
def test_a_killed_redis_is_a_miss_and_is_found_again(redis_server: RedisServer) -> None:
    now = [0.0]
    store = open_store(redis_server.url, now)
    store.put("a", make_chunk())
    store.flush()
    assert load(store, "a") is not None

    redis_server.kill()
    for _ in range(4):
        assert load(store, "a") is None
    redis_server.start()
    now[0] += 120
    store.put("b", make_chunk(1))
    store.flush()

    assert same(load(store, "b"), make_chunk(1))  # type: ignore[arg-type]
    assert load(store, "a") is None, "Redis has lost it"
    store.close()


@pytest.mark.process
def test_a_redis_without_room_keeps_what_it_has() -> None:
    pytest.importorskip("redis", reason="needs the extra redis")
    if PROGRAM is None:
        pytest.skip("neither redis-server nor valkey-server is on PATH")
    with RedisServer("--maxmemory", "6mb") as server:
        place = join_remote(server.url)
        assert place is not None
        assert place.save("small", make_chunk())
        assert not place.save("large", make_chunk(num_tokens=100_000))
        assert place.load("large") is None
        assert same(place.load("small"), make_chunk())
        place.close()


@pytest.mark.process
@pytest.mark.parametrize("kind", ["redis", "mooncake"])
def test_a_store_that_is_too_small_evicts_and_that_is_counted(kind: str) -> None:
    """Neither store tells a client what it has evicted: the look-up that misses it does."""
    if kind == "mooncake" and (reason := mooncake.missing()) is not None:
        pytest.skip(reason)
    if kind == "redis" and PROGRAM is None:
        pytest.skip("neither redis-server nor valkey-server is on PATH")
    limited = ("--maxmemory", "48mb", "--maxmemory-policy", "allkeys-lru")
    with RedisServer(*limited) if kind == "redis" else MooncakeServer(size="32 MB") as server:
        store = open_store(server.url, [0.0])
        chunks = {str(number): make_chunk(number, num_tokens=10_000) for number in range(24)}
        for key, chunk in chunks.items():
            store.put(key, chunk)
            store.flush()
        num_stored = store.stats()[-1].entries or 0  # a store may have no room while it evicts
        found = {key: load(store, key) for key in ["nowhere", *chunks]}
        loads = store.stats()[-1].loads
        store.close()

    kept = {key for key, chunk in found.items() if chunk is not None}
    assert 0 < len(kept) < len(chunks)
    assert all(same(found[key], chunks[key]) for key in kept)  # type: ignore[arg-type]
    assert loads == {
        "loaded": len(kept),
        "evicted": num_stored - len(kept),
        "absent": 1 + len(chunks) - num_stored,
    }
    if kind == "redis":
        assert num_stored == len(chunks)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["redis", "mooncake"])
def test_a_writer_killed_in_the_middle_leaves_whole_values_only(
    kind: str, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("redis_server" if kind == "redis" else "mooncake_store")
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITE_FOR_EVER, server.url], cwd=ROOT, stdout=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stdout.readline(), "it has begun"  # importing torch takes its time
    place = join_remote(server.url)
    assert place is not None
    eventually(lambda: "1" in place)
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=DEADLINE_S)

    found = [place.load(str(number)) for number in range(8)]

    assert found[1] is not None
    for number, chunk in enumerate(found):
        assert chunk is None or same(chunk, make_chunk(number, num_tokens=20_000))
    assert place.num_refused == 0
    place.close()


@pytest.mark.process
@pytest.mark.parametrize("killed", ["pool", "master"])
def test_a_killed_part_of_mooncake_is_a_miss(mooncake_store: MooncakeServer, killed: str) -> None:
    now = [0.0]
    store = open_store(mooncake_store.url, now)
    store.put("a", make_chunk())
    store.flush()
    assert load(store, "a") is not None

    getattr(mooncake_store, f"kill_{killed}")()

    for _ in range(4):
        assert load(store, "a") is None
    store.put("b", make_chunk())
    assert store.get("b") is not None, "from memory"
    store.close()


@pytest.mark.process
def test_engines_that_use_one_value_at_once_are_no_failure(mooncake_store: MooncakeServer) -> None:
    """Replicas compute the same documents at the same time; a failing store would be left alone."""
    chunks = {f"{number}": make_chunk(number, num_tokens=4000) for number in range(30)}
    at_once = threading.Barrier(3)
    places = [join_remote(mooncake_store.url) for _ in range(3)]
    assert places[0] is not None
    places[0].save("first", make_chunk())

    def use(number: int) -> list[str]:
        place, failures = places[number], list[str]()
        assert place is not None
        for key, chunk in chunks.items():
            at_once.wait(DEADLINE_S)
            try:
                found = None if place.save(key, chunk) and number else place.load(key)
            except StoreUnavailableError as error:
                failures.append(str(error))
            else:
                assert found is None or same(found, chunk)
        return failures

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(use, range(3))] == [[], [], []]
    assert all(same(places[0].load(key), chunk) for key, chunk in chunks.items())
    for place in places:
        assert place is not None
        place.close()


def test_an_address_is_of_a_known_store() -> None:
    for address in ("redis://h:1", "mooncake://h:1"):
        check_address(address)
    for address in ("http://secret@h", "redis:", "h:6379"):
        with pytest.raises(ConfigError, match="remote store") as caught:
            check_address(address)
        assert "secret" not in str(caught.value)


def test_mooncake_that_cannot_be_joined_is_left_out() -> None:
    pytest.importorskip("mooncake", reason="needs the extra mooncake")
    if (reason := mooncake.missing()) is not None:
        pytest.skip(reason)
    assert join_remote("mooncake://127.0.0.1:1") is None
    with pytest.raises(ConfigError, match="mooncake://HOST:PORT"):
        join_remote("mooncake://127.0.0.1:1?unknown=1")
