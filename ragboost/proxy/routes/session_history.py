"""A session's messages, and what the engine was sent for them, as bytes for a store."""

from collections.abc import Sequence
from typing import NamedTuple, Self

import msgspec

from ragboost.booster import Turn
from ragboost.errors import SessionUnreadableError
from ragboost.requests.json_body import Link, encode_json
from ragboost.requests.sent_history import Conversation, HistoryDelta, SentMessage
from ragboost.requests.wires.chat_answers import AnswerMessage


class SessionTurn(msgspec.Struct, frozen=True):
    messages: list[bytes]  # the client's new messages and the answer, as JSON
    sent: list[tuple[Link, SentMessage]]  # the rewritten ones, by link
    turn: Turn | None  # the Booster's record of the turn

    @classmethod
    def of(cls, new: Sequence[bytes], answer: AnswerMessage, delta: HistoryDelta) -> Self:
        return cls([*new, encode_json(answer)], list(delta.sent), delta.turn)

    def encode(self) -> bytes:
        return _ENCODER.encode(self)


class SessionHistory(NamedTuple):
    """All messages of a session as the client knows them, as JSON, and as they were sent."""

    messages: tuple[bytes, ...]
    sent: Conversation


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SessionTurn)


def read_history(turns: Sequence[bytes], *, system: str | None) -> SessionHistory:
    messages: list[bytes] = []
    if system is not None:
        messages.append(encode_json({"role": "system", "content": system}))
    try:
        decoded = [_DECODER.decode(turn) for turn in turns]
    except (msgspec.MsgspecError, RecursionError):
        raise SessionUnreadableError(
            "a stored turn of this session is damaged or of another version; start another session",
            param="session_id",
        ) from None
    for turn in decoded:
        messages.extend(turn.messages)
    deltas = [HistoryDelta(tuple(turn.sent), turn.turn) for turn in decoded]
    forms = [form for delta in deltas for form in delta.forms()]
    return SessionHistory(tuple(messages), Conversation(forms))
