"""Check a turn of a chat session, turn it into a chat completion request, and keep it as bytes.

Notices clients that send the history of a session again. Does not know stores.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec

from ragboost.booster import Turn
from ragboost.errors import RequestError, SessionConflictError, SessionUnreadableError
from ragboost.requests.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.requests.json_body import (
    JsonBody,
    Link,
    MalformedBodyError,
    decode_message,
    encode_json,
)
from ragboost.requests.sent_history import Conversation, HistoryDelta, SentMessage
from ragboost.requests.wires.chat_answers import AnswerMessage
from ragboost.requests.wires.openai_chat import OPENAI_CHAT

# RAGBoost's own; all other fields of a turn's body are forwarded to the backend.
_TURN_FIELDS = ("messages", "query", "documents", FIELD)


class TurnRequest(NamedTuple):
    """A turn as a chat completion request with the whole history."""

    body: bytes  # the request, with the documents in a `ragboost` object
    new: list[bytes]  # the client's new messages, as JSON
    is_flat: bool  # the client gave the documents in a field of their own


def make_turn(raw: bytes, history: Sequence[bytes], *, model: str | None) -> TurnRequest:
    """Append a turn to its session's history, whose `model` is used if the body names none.

    The body has `query` or `messages`, optionally `documents` or a `ragboost` object; its other
    fields are kept. A RequestError names the field that is wrong, a SessionConflictError the
    messages that the session has already.
    """
    try:
        payload = JsonBody(raw)
    except MalformedBodyError as error:
        raise RequestError(f"the body must be a JSON object: {error}") from None
    body = payload.fields
    new = _new_messages(payload)
    refuse_resent(body.get("messages") or (), history)
    fields: dict[str, Any] = {
        name: msgspec.Raw(payload.field_bytes(name)) for name in body if name not in _TURN_FIELDS
    }
    if body.get("model") is None and model is not None:
        fields["model"] = model
    fields["messages"] = [msgspec.Raw(message) for message in (*history, *new)]
    ours = dict(ragboost_fields(body))
    if ours.get("session_id") is not None:
        where = f"{FIELD}.session_id"
        raise RequestError(f"{where} is not allowed here: the path names the session", param=where)
    is_flat = body.get("documents") is not None
    if is_flat and FIELD in body:
        raise RequestError(f"give either documents or {FIELD}, not both", param="documents")
    documents = body["documents"] if is_flat else ours.get("documents")
    if documents and not _asks(body):
        raise RequestError("documents need a new user message", param="messages")
    if is_flat:
        fields[FIELD] = {"documents": msgspec.Raw(payload.field_bytes("documents"))}
    elif ours:
        fields[FIELD] = msgspec.Raw(payload.field_bytes(FIELD))
    return TurnRequest(msgspec.json.encode(fields), new, is_flat)


def _new_messages(payload: JsonBody) -> list[bytes]:
    body = payload.fields
    if (query := body.get("query")) is not None:
        if "messages" in body:
            raise RequestError("give either query or messages, not both", param="query")
        if not isinstance(query, str) or not query.strip():
            raise RequestError("query must be a non-empty string", param="query")
        return [b'{"role":"user","content":' + payload.field_bytes("query") + b"}"]
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(
            "the turn is empty: give query, or messages with one or more new messages",
            param="messages",
        )
    for at, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise RequestError(
                f"messages[{at}] must be an object with a role", param=f"messages[{at}]"
            )
    return [bytes(message) for message in payload.messages]


def _asks(body: Mapping[str, Any]) -> bool:
    messages = body.get("messages")
    return messages is None or any(message.get("role") == "user" for message in messages)


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


_MAX_OVERLAPS = 16  # with the session that are looked at


class _Digest(NamedTuple):
    """The part of a message that a client leaves as it is when it sends it again."""

    role: Any
    text: bytes
    calls: tuple[Any, ...]


def refuse_resent(new: Sequence[Any], history: Sequence[bytes]) -> None:
    """Refuse new messages that begin with the latest ones of the session: a client of this API that
    keeps a history of its own would send every turn twice.

    Raises:
        SessionConflictError: names the messages that are new.
    """
    given = [(at, message) for at, message in enumerate(new) if not _is_instruction(message)]
    if not any(message["role"] == "assistant" for _, message in given):
        return
    decoded = [decode_message(msgspec.Raw(message)) for message in history]
    past = [_digest(message) for message in decoded if not _is_instruction(message)]
    digests = [_digest(message) for _, message in given]
    for num in _possible_overlaps(digests, past):
        if _is_same(digests[:num], past[-num:], is_whole=num == len(past)):
            first = given[num - 1][0] + 1
            raise SessionConflictError(
                f"messages[:{first}] are in the session already, which keeps its history: send "
                f"messages[{first}:] only, or whole histories to /v1/chat/completions",
                param="messages",
            )


def _possible_overlaps(given: Sequence[_Digest], past: Sequence[_Digest]) -> list[int]:
    """Return the numbers of leading new messages that may be the latest ones of the session,
    the largest first."""
    if not past:
        return []
    ends = [at for at, message in enumerate(given[: len(past)], 1) if message == past[-1]]
    return [*([len(past)] if len(given) >= len(past) else []), *ends[: -_MAX_OVERLAPS - 1 : -1]]


def _is_same(given: Sequence[_Digest], past: Sequence[_Digest], *, is_whole: bool) -> bool:
    """Compare messages; those of the assistant may be edited if all others of a history are not."""
    return all(
        a == b or (is_whole and a.role == b.role == "assistant")
        for a, b in zip(given, past, strict=True)
    )


def _digest(message: Mapping[str, Any]) -> _Digest:
    content, calls = message.get("content"), message.get("tool_calls")
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    text = json.dumps([t for t in texts if t not in (None, "")]).encode()
    calls = calls if isinstance(calls, list) else []
    ids = [str(call.get("id")) for call in calls if isinstance(call, dict)]
    return _Digest(message.get("role"), hashlib.sha256(text).digest(), tuple(ids))


def _is_instruction(message: Mapping[str, Any]) -> bool:
    return message.get("role") in OPENAI_CHAT.instruction_roles
