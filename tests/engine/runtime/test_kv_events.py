"""Cache events on the wire: vLLM's format, sequence numbers, replay, and a mirror that agrees."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from ragboost.cache_events import AllBlocksCleared
from ragboost.engine.runtime.kv_events import EventPublisher
from ragboost.engine.runtime.prefix_cache import BlockCache
from ragboost.errors import ConfigError
from tests.engine.conftest import MODEL, Served

KEYS = [bytes(24) + b"\xff" * 8, bytes(24) + b"\x00\x00\x00\x00\x00\x00\x00\x07"]


@contextmanager
def socket(kind: int, endpoint: str) -> Iterator["zmq.Socket[bytes]"]:
    with zmq.Context() as context, context.socket(kind) as opened:
        opened.setsockopt(zmq.LINGER, 0)
        opened.setsockopt(zmq.RCVTIMEO, 10_000)
        if kind == zmq.SUB:
            opened.setsockopt_string(zmq.SUBSCRIBE, "")
        opened.connect(endpoint)
        yield opened


def replayed(endpoint: str, first: int) -> list[tuple[int, list[Any]]]:
    batches = []
    with socket(zmq.DEALER, endpoint) as dealer:
        dealer.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            empty, _topic, seq, payload = dealer.recv_multipart()
            assert empty == b""
            if int.from_bytes(seq, "big", signed=True) == -1:
                assert payload == b""
                return batches
            batches.append((int.from_bytes(seq, "big"), msgspec.msgpack.decode(payload)))


def source(served: Served) -> dict[str, Any]:
    (only,) = httpx.get(f"{served.url}/kv_event_sources").json().values()
    assert only["publisher"] == "zmq"
    found: dict[str, Any] = only
    return found


def test_events_are_maps_in_vllms_order_of_fields() -> None:
    cache = BlockCache(4, 2)
    held = cache.insert(KEYS, [1, 2, 3, 4], parent=None, salt="tenant", session_id="s0").blocks
    cache.insert([bytes(32)], [1, 2], parent=held[1], salt="tenant")
    stored, later = cache.take_events()
    assert list(msgspec.to_builtins(stored).items()) == [
        ("type", "BlockStored"),
        ("block_hashes", [2**64 - 1, 7]),
        ("parent_block_hash", None),
        ("token_ids", [1, 2, 3, 4]),
        ("block_size", 2),
        ("lora_id", None),
        ("medium", "GPU"),
        ("lora_name", None),
        ("extra_keys", [["tenant"], None]),
        ("group_idx", 0),
        ("kv_cache_spec_kind", "full_attention"),
        ("session_id", "s0"),
    ]
    assert msgspec.to_builtins(later)["extra_keys"] == [None]
    assert msgspec.to_builtins(later)["parent_block_hash"] == 7
    assert "session_id" not in msgspec.to_builtins(later)


def test_removed_and_cleared_encode_to_the_bytes_that_vllm_sends() -> None:
    cache = BlockCache(1, 32)
    key = bytes(24) + bytes.fromhex("1a44982a6f56e164")
    cache.release(cache.insert([key], [0] * 32, parent=None).blocks)
    cache.evict(1)
    cache.clear()
    _, removed, cleared = cache.take_events()
    captured = (
        "84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf1a44982a6f56e164"
        "a66d656469756da3475055a967726f75705f69647800"
    )
    assert msgspec.msgpack.encode(removed).hex() == captured
    assert msgspec.msgpack.encode(cleared).hex() == "81a474797065b0416c6c426c6f636b73436c6561726564"


def test_a_subscribers_mirror_equals_the_prefix_cache(fresh: Served) -> None:
    endpoint = source(fresh)["endpoint"]
    mirror: dict[int, int | None] = {}
    numbers: list[int] = []
    sessions = set()
    with socket(zmq.SUB, endpoint) as subscriber:
        reset = f"{fresh.url}/reset_prefix_cache"
        while not subscriber.poll(100):  # until the subscription has arrived
            httpx.post(reset)
        for i in range(8):  # 8 x 700 tokens into a cache of 4,096
            fresh.client.completions.create(
                model=MODEL,
                prompt=[5 + (i * 97 + j) % 3000 for j in range(700)],
                max_tokens=20,
                extra_body={"session_id": f"s{i}", "ignore_eos": True},
            )
        httpx.post(reset)
        fresh.client.completions.create(model=MODEL, prompt=list(range(5, 105)), max_tokens=1)
        while not mirror or len(mirror) < 6 or subscriber.poll(300):
            topic, seq, payload = subscriber.recv_multipart()
            assert topic == b""
            numbers.append(int.from_bytes(seq, "big"))
            _, events, rank = msgspec.msgpack.decode(payload)
            assert rank == 0
            for event in events:
                apply(event, mirror)
                sessions.add(event.get("session_id"))
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert sessions >= {f"s{i}" for i in range(8)}
    assert len(mirror) == len(fresh.engine.store.cache) == 6


def apply(event: dict[str, Any], mirror: dict[int, int | None]) -> None:
    match event["type"]:
        case "BlockStored":
            parent = event["parent_block_hash"]
            assert parent is None or parent in mirror
            assert len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
            for key in event["block_hashes"]:
                assert key not in mirror
                mirror[key] = parent
                parent = key
        case "BlockRemoved":
            for key in event["block_hashes"]:
                del mirror[key]
                assert key not in mirror.values(), "a parent went before its child"
        case "AllBlocksCleared":
            mirror.clear()


def test_replay_gives_all_batches_from_a_number_on(fresh: Served) -> None:
    endpoint = source(fresh)["replay_endpoint"]
    fresh.client.completions.create(model=MODEL, prompt=list(range(5, 60)), max_tokens=1)
    everything = replayed(endpoint, 0)
    assert [seq for seq, _ in everything] == list(range(len(everything)))
    assert replayed(endpoint, len(everything) - 1) == everything[-1:]
    assert replayed(endpoint, len(everything)) == []


def test_a_batch_that_is_dropped_leaves_a_gap() -> None:
    publisher = EventPublisher("tcp://127.0.0.1:*", max_queued=1)
    for _ in range(300):
        publisher.publish([AllBlocksCleared()])
    endpoint = publisher.replay_endpoint
    numbers: list[int] = []
    while len(numbers) < 300 - publisher.num_dropped:
        numbers = [seq for seq, _ in replayed(endpoint, 0)]
    publisher.publish([AllBlocksCleared()])  # there is room again
    while numbers[-1] != 300:
        numbers = [seq for seq, _ in replayed(endpoint, 0)]
    publisher.close()
    publisher.close()
    assert publisher.num_dropped > 0
    assert len(numbers) == 301 - publisher.num_dropped, (
        "the numbers of dropped batches are left out"
    )


def test_an_address_that_cannot_be_bound_is_named() -> None:
    with pytest.raises(ConfigError, match=r"engine.kv_events_endpoint: cannot bind 'nonsense'"):
        EventPublisher("nonsense")
