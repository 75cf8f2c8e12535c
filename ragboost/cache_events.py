"""The KV cache events of vLLM and SGLang on the wire.

Decodes maps tagged by `type` (current releases) and positional arrays (older ones), with fewer or
more fields than are known here, and encodes maps. Decodes any bytes to a batch that a mirror can
apply, or raises `EventStreamError`. Does not know sockets or sequence numbers.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from ragboost.errors import EventStreamError

MAX_BATCH_BYTES = 16 * 1024 * 1024
"""Size of the largest batch that is decoded: the events of some million tokens."""

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, MemoryError)
"""What msgspec raises for bytes that are not of the expected type."""

BlockHash = int | Annotated[bytes, msgspec.Meta(max_length=64)]
"""An engine's name for a block: opaque, a signed or unsigned 64-bit integer, or bytes."""

APPROXIMATE = "RAGBOOST_APPROXIMATE"
"""Medium of a `BlockRemoved` that takes nothing out of the cache: the blocks hold KV that was
assembled from stored chunks, so that no exact request hits them or what follows them."""

_MAX_EVENTS = 2**18
_MAX_LENGTH = 2**22  # of the lists in an event
_MAX_NAME = 64
_Hashes = Annotated[list[BlockHash], msgspec.Meta(max_length=_MAX_LENGTH)]
_TokenId = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Bigram = Annotated[tuple[_TokenId, ...], msgspec.Meta(min_length=1, max_length=8)]
_TokenIds = Annotated[list[_TokenId | _Bigram], msgspec.Meta(max_length=_MAX_LENGTH)]
_Medium = Annotated[str, msgspec.Meta(max_length=_MAX_NAME)]
_ExtraKeys = Annotated[list[list[Any] | None], msgspec.Meta(max_length=_MAX_LENGTH)]

_MAP_TYPES = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
_ARRAY_TYPES = frozenset({*range(0x90, 0xA0), 0xDC, 0xDD})


def _null() -> Any:
    # With a default of None, `omit_defaults` would leave the field out; engines write a null.
    return msgspec.field(default_factory=lambda: None)


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """A chain of blocks, following `parent_block_hash`, that entered the prefix cache."""

    block_hashes: _Hashes  # one per block, in prompt order
    # The block before the first one; None at the start of a prompt.
    parent_block_hash: BlockHash | None = _null()
    token_ids: _TokenIds = []  # `block_size` for each block; pairs where the engine caches bigrams
    block_size: int = 0
    lora_id: int | str | None = _null()
    # `GPU` (also on CPU engines), `CPU`, `CPU_PINNED`, `DISK`, ...; None means GPU.
    medium: _Medium | None = None
    lora_name: str | None = _null()
    # VLLM, per block: LoRA name, (multimodal id, offset) pairs, cache salt.
    extra_keys: _ExtraKeys | None = None
    group_idx: int | None = None  # the KV cache group of hybrid models
    kv_cache_spec_kind: str | None = None  # the group's kind of attention
    cache_salt: str | None = None
    session_id: str | None = None  # the session id of the request that stored the blocks


class BlockRemoved(msgspec.Struct, frozen=True, kw_only=True, tag=True, omit_defaults=True):
    """Blocks that were evicted from the prefix cache."""

    block_hashes: _Hashes
    medium: _Medium | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """The whole prefix cache was cleared."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, frozen=True):
    ts: float  # seconds since the epoch by the engine's clock
    events: Sequence[Event]  # in the order in which they happened
    dp_rank: int | None = None  # the data-parallel rank of the publisher, if reported
    unknown: tuple[str, ...] = ()  # names of skipped events of unknown types


# The fields of events that are positional arrays.
_POSITIONS = {
    "BlockStored": "type block_hashes parent_block_hash token_ids block_size lora_id medium "
    "lora_name extra_keys group_idx kv_cache_spec_kind kv_cache_spec_sliding_window locality "
    "ownership session_id",
    "BlockRemoved": "type block_hashes medium group_idx",
    "AllBlocksCleared": "type",
}


class _Tag(msgspec.Struct):
    type: str


_decode_list = msgspec.msgpack.Decoder(
    Annotated[list[msgspec.Raw], msgspec.Meta(max_length=_MAX_EVENTS)]
).decode
_decode_map = msgspec.msgpack.Decoder(Event).decode
_decode_tag = msgspec.msgpack.Decoder(_Tag).decode
_decode_text = msgspec.msgpack.Decoder(str).decode
_decode_float = msgspec.msgpack.Decoder(float).decode
_decode_rank = msgspec.msgpack.Decoder(int | None).decode
_encode = msgspec.msgpack.Encoder().encode


def decode_batch(payload: bytes) -> EventBatch:
    """Decode the last frame of a message: `[ts, events]` or `[ts, events, dp_rank, ...]`."""
    if len(payload) > MAX_BATCH_BYTES:
        raise EventStreamError(
            f"event batch of {len(payload)} bytes, the limit is {MAX_BATCH_BYTES}"
        )
    try:
        parts = _decode_list(payload)
        if len(parts) < 2:
            raise EventStreamError(f"event batch has {len(parts)} parts, expected [ts, events]")
        decoded = [_decode_event(raw) for raw in _decode_list(parts[1])]
        return EventBatch(
            ts=_decode_float(parts[0]),
            events=tuple(event for event in decoded if not isinstance(event, str)),
            dp_rank=_decode_rank(parts[2]) if len(parts) > 2 else None,
            unknown=tuple(event for event in decoded if isinstance(event, str)),
        )
    except UNDECODABLE as error:
        reason = repr(str(error)[:200])  # it may quote the payload
        raise EventStreamError(f"event batch of {len(payload)} bytes: {reason}") from None


def encode_batch(batch: EventBatch) -> bytes:
    """Encode a batch in the layout of current releases (maps tagged by `type`)."""
    return _encode((batch.ts, batch.events, batch.dp_rank))


def _decode_event(raw: msgspec.Raw) -> Event | str:
    first = memoryview(raw)[0]
    if first in _MAP_TYPES:
        name = ""
    elif first in _ARRAY_TYPES:
        parts = _decode_list(raw)
        if not parts:
            raise EventStreamError("event array does not begin with its type")
        name = _decode_text(parts[0])[:_MAX_NAME]
        if name not in _POSITIONS:
            return name
        raw = msgspec.Raw(_encode(dict(zip(_POSITIONS[name].split(), parts, strict=False))))
    else:
        raise EventStreamError(
            f"event is neither a map nor an array, its first byte is {first:#04x}"
        )
    try:
        event: Event = _decode_map(raw)
    except msgspec.ValidationError:
        name = name or _decode_tag(raw).type[:_MAX_NAME]
        if name in _POSITIONS:
            raise
        return name
    return event
