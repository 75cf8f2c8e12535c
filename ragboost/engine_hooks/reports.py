"""The wire format of `POST /v1/index/events`, the plug-in's reports: msgpack both ways."""

from typing import Annotated

import msgspec

from ragboost.cache_events import UNDECODABLE
from ragboost.errors import EventStreamError

REPORT_PATH = "/v1/index/events"
CONTENT_TYPE = "application/msgpack"

_MAX_BATCHES = 1024
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Batches = Annotated[list[tuple[_Number, bytes]], msgspec.Meta(max_length=_MAX_BATCHES)]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Numbered event batches of one engine process; a heartbeat if there are none."""

    stream: _Name  # name of the replica and rank, such as `replica-0/0`
    epoch: _Name  # random id of the process, so that a restart is noticed at once
    # Sequence number and payload, as in the last frame of a KV event message.
    batches: _Batches = []
    is_replay: bool = False  # these batches answer `Reply.replay_from`
    is_last: bool = False  # with `is_replay`, these are the last ones


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The proxy's request for a replay from this batch on; None asks for nothing."""

    replay_from: int | None = None


encode = msgspec.msgpack.Encoder().encode
_decode_report = msgspec.msgpack.Decoder(Report).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


def decode_report(body: bytes) -> Report:
    try:
        return _decode_report(body)
    except UNDECODABLE as error:
        raise EventStreamError(f"invalid cache event report: {str(error)[:200]!r}") from None


def decode_reply(body: bytes) -> Reply:
    try:
        return _decode_reply(body)
    except UNDECODABLE as error:
        raise EventStreamError(f"invalid reply to a report: {str(error)[:200]!r}") from None
