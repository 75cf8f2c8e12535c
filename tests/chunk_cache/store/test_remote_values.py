"""Values that others put into a shared Redis: foreign, damaged, oversized, of another type."""

import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ragboost.chunk_cache.store.files import decode, encode
from ragboost.chunk_cache.store.remote import join_remote
from ragboost.chunk_cache.store.remote.tier import RemoteTier
from ragboost.errors import StoreUnavailableError
from tests.chunk_cache.store.chunks import make_chunk, same
from tests.fakes.redis import RedisServer


@pytest.fixture
def tier(redis_server: RedisServer) -> Iterator[RemoteTier]:
    tier = join_remote(redis_server.url)
    assert tier is not None
    with closing(tier):
        yield tier


def name_of(tier: RemoteTier, key: str) -> str:
    return f"{{{tier._name(key)}}}"


def test_a_valid_value_of_another_tenant_or_model_is_refused_under_this_key(
    redis_server: RedisServer, tier: RemoteTier
) -> None:
    with redis_server.client() as client:
        client.set(name_of(tier, "mine"), encode("theirs", make_chunk()))
        assert tier.load("mine") is None
        assert not client.exists(name_of(tier, "mine")), "removed, and computed again"
    assert tier.num_refused == 1


def test_an_oversized_value_is_not_read(redis_server: RedisServer, tier: RemoteTier) -> None:
    with redis_server.client() as client:
        name = name_of(tier, "a")
        client.setrange(name, (512 << 20) - 1, b"x")  # Redis's own limit, of zeros
        assert tier.load("a") is None
        assert not client.exists(name)
        client.setrange(name, 65 << 20, b"x")
        client.rename(name, "{ragboost-kv:generation}")
        client.config_resetstat()
        tier._read_at = -1e9
        assert tier.load("a") is None, "in a new generation"
        assert "getrange" not in str(client.info("commandstats")), "it is not read"
        assert client.strlen("{ragboost-kv:generation}") == 32


@pytest.mark.parametrize("key", ["a", None])
def test_a_value_of_another_type_is_a_miss_and_is_replaced(
    redis_server: RedisServer, tier: RemoteTier, key: str | None
) -> None:
    with redis_server.client() as client:
        name = "{ragboost-kv:generation}" if key is None else name_of(tier, key)
        client.delete(name)
        client.lpush(name, "not ours")
        tier._read_at = -1e9
        assert tier.load("a") is None
        assert tier.save("a", make_chunk())
        assert same(tier.load("a"), make_chunk())


def test_what_two_ranks_store_first_in_an_empty_store_is_found(
    redis_server: RedisServer, tier: RemoteTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both look for the generation, find none and begin one, of which the later counts."""
    other = join_remote(redis_server.url)
    assert other is not None
    put = tier._driver.put

    def put_after_the_other(name: str, value: bytes) -> bool:
        monkeypatch.undo()
        assert other.load("a") is None
        return put(name, value)

    monkeypatch.setattr(tier._driver, "put", put_after_the_other)
    assert tier.load("a") is None
    tier.save("a", make_chunk(1))
    other.save("b", make_chunk(2))
    assert same(tier.load("b"), make_chunk(2))
    assert same(other.load("a"), make_chunk(1))
    other.close()


def test_what_two_ranks_store_right_after_both_emptied_a_store_is_found(
    redis_server: RedisServer, tier: RemoteTier
) -> None:
    other = join_remote(redis_server.url)
    assert other is not None
    assert tier.load("a") is other.load("a") is None
    tier.clear()
    other.clear()
    tier.save("a", make_chunk(1))
    assert same(other.load("a"), make_chunk(1))
    other.close()


def test_a_value_that_changes_while_it_is_read_is_a_whole_one_or_none(tier: RemoteTier) -> None:
    first, second = (make_chunk(seed, num_tokens=20_000, num_layers=3) for seed in (1, 2))
    tier.save("a", first)
    has_ended = threading.Event()

    def change() -> None:
        for number in range(12):
            tier.save("a", first if number % 2 else second)
        has_ended.set()

    writer = threading.Thread(target=change)
    writer.start()
    while not has_ended.is_set():
        found = tier.load("a")
        assert found is None or same(found, first) or same(found, second)
    writer.join()


class CuttingRelay:
    """A socket before Redis that is closed for ever after the first answer to a write."""

    def __init__(self, folder: Path, server: RedisServer) -> None:
        self.url = f"unix://{folder / 'r'}"
        self._target = str(server.path)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "r"))
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()
        with client, socket.socket(socket.AF_UNIX) as server:
            server.connect(self._target)
            is_write = False
            while not is_write and (data := client.recv(1 << 20)):
                is_write = b"SETRANGE" in data
                server.sendall(data)
                client.sendall(server.recv(1 << 20))


def test_a_writer_that_ends_between_two_commands_leaves_nothing_for_ever(
    redis_server: RedisServer,
) -> None:
    tier = join_remote(CuttingRelay(redis_server.folder, redis_server).url)
    assert tier is not None
    tier._generation, tier._read_at = "g", float("inf")
    with pytest.raises(StoreUnavailableError):
        tier.save("a", make_chunk())
    tier.close()
    with redis_server.client() as client:
        lifetimes = {key: client.ttl(key) for key in client.keys("*")}
    assert -1 not in lifetimes.values(), lifetimes


@pytest.mark.parametrize("places", [(0, 1), (1,)])
def test_an_offset_that_is_no_whole_number_is_not_read(places: tuple[int, ...]) -> None:
    """It once ended the thread that loads."""
    data = encode("a", make_chunk())
    (length,) = struct.unpack("<Q", data[:8])
    header: dict[str, Any] = json.loads(data[8 : 8 + length])
    for name, entry in header.items():
        if name != "__metadata__":
            for place in places:
                entry["data_offsets"][place] = float(entry["data_offsets"][place])
    text = json.dumps(header).encode()
    crafted = bytearray(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert same(decode(crafted, "a"), make_chunk())
