"""Check a turn of a chat session and turn it into a chat completion request."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ragboost.errors import RequestError
from ragboost.proxy.routes.resent_history import refuse_resent
from ragboost.requests.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.requests.json_body import JsonBody, MalformedBodyError

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
