"""A session's messages and what the engine was sent for them, as bytes for a store.

Knows JSON messages as the client and the backend wrote them. Does not know stores or HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from ragboost.booster.session import Turn
from ragboost.proxy.upstream.response_reader import Message
from ragboost.rewriting.conversations import HistoryDelta, Link, SentHistory, SentMessage


class SessionTurn(msgspec.Struct, frozen=True):
    """One turn of a session.

    Attributes:
        messages: what the client added, as JSON, and the answer.
        sent: what of it was rewritten.
        turn: what the Booster knows of it.
    """

    messages: list[bytes]
    sent: list[tuple[Link, SentMessage]]
    turn: Turn | None

    @classmethod
    def of(cls, new: Sequence[bytes], answer: Message, learned: HistoryDelta) -> Self:
        """A turn that has been answered."""
        return cls([*new, encode_message(answer)], list(learned.sent), learned.turn)

    def encode(self) -> bytes:
        """The turn as bytes."""
        return _ENCODER.encode(self)


class SessionHistory(NamedTuple):
    """All messages of a session as the client knows them, as JSON, and what was sent for them."""

    messages: tuple[bytes, ...]
    past: SentHistory


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(SessionTurn)


def read_history(turns: Sequence[bytes], *, system: str | None) -> SessionHistory:
    """Put a session's turns together, behind its system prompt."""
    messages: list[bytes] = []
    if system is not None:
        messages.append(encode_message({"role": "system", "content": system}))
    decoded = [_DECODER.decode(turn) for turn in turns]
    for turn in decoded:
        messages.extend(turn.messages)
    sent = {link: old for turn in decoded for link, old in turn.sent}
    return SessionHistory(
        tuple(messages), SentHistory(sent, tuple(turn.turn for turn in decoded if turn.turn))
    )


def encode_message(message: Mapping[str, Any]) -> bytes:
    """A message as JSON."""
    return msgspec.json.encode(message)
