"""The wire format of the plug-in's reports, msgpack both ways.

`POST /v1/index/events` carries a report; its response carries a reply. Knows no web framework.
"""

import msgspec

REPORT_PATH = "/v1/index/events"
CONTENT_TYPE = "application/msgpack"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Numbered event batches of one engine process; a heartbeat if there are none.

    Attributes:
        stream: name of the replica and rank, such as `replica-0/0`.
        epoch: random id of the process, so that a restart is noticed at once.
        batches: sequence number and payload, as in the last frame of a KV event message.
        is_replay: these batches answer `Reply.replay_from`.
        is_last: with `is_replay`, these are the last ones.
    """

    stream: str
    epoch: str
    batches: list[tuple[int, bytes]] = []
    is_replay: bool = False
    is_last: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """The proxy's request for a replay from this batch on; None asks for nothing."""

    replay_from: int | None = None


encode = msgspec.msgpack.Encoder().encode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
"""All decoders raise `msgspec.DecodeError`."""
