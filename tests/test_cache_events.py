"""Frames as two engines really sent them, and frames that older or newer ones might send."""

import json
from pathlib import Path

import msgspec
import pytest

from ragboost.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    decode_batch,
    encode_batch,
)
from ragboost.errors import EventStreamError

SAMPLES = Path(__file__).parent / "cache_sync" / "samples"


def frames(name: str) -> list[bytes]:
    lines = (SAMPLES / f"{name}-frames.jsonl").read_text().splitlines()
    return [bytes.fromhex(json.loads(line)["payload"]) for line in lines]


def pack(*events: object, rank: object = 0) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), rank])


def test_vllm_frames_decode_into_blocks_with_tokens_salt_and_session() -> None:
    batches = [decode_batch(payload) for payload in frames("vllm-0.32.0")]
    first = batches[0].events[0]
    assert isinstance(first, BlockStored)
    assert first.token_ids == list(range(300, 428))
    assert (len(first.block_hashes), first.block_size, first.parent_block_hash) == (4, 32, None)
    assert (first.medium, first.group_idx, first.kv_cache_spec_kind) == ("GPU", 0, "full_attention")
    assert first.session_id == "s0"
    second = batches[1].events[0]
    assert isinstance(second, BlockStored)
    assert second.parent_block_hash in first.block_hashes
    salted = batches[2].events[0]
    assert isinstance(salted, BlockStored)
    assert salted.extra_keys == [["tenant-a"], None, None, None]
    assert [type(event) for event in batches[6].events] == [BlockRemoved] * 3 + [BlockStored]
    assert batches[9].events[0] == AllBlocksCleared()
    assert all(batch.dp_rank == 0 and not batch.unknown for batch in batches)


def test_sglang_frames_decode_with_signed_hashes_and_coalesced_removals() -> None:
    batches = [decode_batch(payload) for payload in frames("sglang-0.5.23")]
    first, second = batches[0].events[0], batches[1].events[0]
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert (len(first.block_hashes), first.block_size, first.session_id) == (9, 16, "s0")
    assert second.parent_block_hash == first.block_hashes[5]
    assert isinstance(first.block_hashes[0], int)
    assert first.block_hashes[0] < 0
    removed = batches[5].events[0]
    assert isinstance(removed, BlockRemoved)
    assert len(removed.block_hashes) == 9
    assert batches[9].events == (AllBlocksCleared(),)


@pytest.mark.parametrize("name", ["vllm-0.32.0", "sglang-0.5.23"])
def test_encoded_batches_decode_to_the_same_events(name: str) -> None:
    for payload in frames(name):
        batch = decode_batch(payload)
        assert decode_batch(encode_batch(batch)) == batch


def test_positional_arrays_of_older_releases_decode_whatever_their_length() -> None:
    short = ["BlockStored", [1, 2], None, [5, 6, 7, 8], 2, None]
    longest = [
        *["BlockStored", [3], 2, [9, 10], 2, 7, "CPU", "adapter", [["adapter"]], 0],
        *["full_attention", None, None, None, "request-1", "a field of next year"],
    ]
    batch = decode_batch(pack(short, longest, ["BlockRemoved", [1]], ["AllBlocksCleared"]))
    first, second, removed, cleared = batch.events
    assert first == BlockStored(block_hashes=[1, 2], token_ids=[5, 6, 7, 8], block_size=2)
    assert isinstance(second, BlockStored)
    assert (second.lora_name, second.medium, second.session_id) == ("adapter", "CPU", "request-1")
    assert removed == BlockRemoved(block_hashes=[1])
    assert cleared == AllBlocksCleared()


def test_batches_without_rank_and_with_more_parts_decode() -> None:
    event = {"type": "BlockRemoved", "block_hashes": [1], "a_new_field": {"x": 1}}
    assert decode_batch(msgspec.msgpack.encode([2, [event]])).dp_rank is None
    batch = decode_batch(msgspec.msgpack.encode([2.0, [event], 3, "more"]))
    assert batch.dp_rank == 3
    assert batch.events == (BlockRemoved(block_hashes=[1]),)


def test_hashes_keep_their_bits_as_unsigned_signed_or_bytes() -> None:
    hashes = [2**64 - 1, -(2**63), b"\x00" * 32]
    batch = decode_batch(pack({"type": "BlockRemoved", "block_hashes": hashes}))
    assert batch.events == (BlockRemoved(block_hashes=hashes),)


def test_bigram_tokens_decode_as_pairs() -> None:
    stored = {"type": "BlockStored", "block_hashes": [1], "token_ids": [[1, 2]], "block_size": 1}
    event = decode_batch(pack(stored)).events[0]
    assert isinstance(event, BlockStored)
    assert event.token_ids == [(1, 2)]


def test_unknown_events_are_named_and_left_out() -> None:
    batch = decode_batch(pack({"type": "BlockMoved"}, ["BlockPinned", 1], ["AllBlocksCleared"]))
    assert batch.unknown == ("BlockMoved", "BlockPinned")
    assert batch.events == (AllBlocksCleared(),)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"ts": 1}),
        msgspec.msgpack.encode([1.0]),
        msgspec.msgpack.encode(["late", []]),
        pack(7),
        pack([]),
        pack([3]),
        pack({"kind": "BlockStored"}),
        pack({"type": "BlockStored"}),
        pack({"type": "BlockRemoved", "block_hashes": ["text"]}),
        pack(["BlockRemoved"]),
        pack(["BlockStored", [1.5]]),
        pack(rank="zero"),
    ],
)
def test_unreadable_frames_raise_an_event_stream_error(payload: bytes) -> None:
    with pytest.raises(EventStreamError):
        decode_batch(payload)


def test_every_truncation_of_a_real_frame_raises_an_event_stream_error() -> None:
    payload = frames("vllm-0.32.0")[6]
    for length in range(0, len(payload), 7):
        with pytest.raises(EventStreamError):
            decode_batch(payload[:length])
