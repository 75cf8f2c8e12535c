"""What clients send to the chat-session API: checked, and made into a chat completion request.

Knows JSON bodies. Does not know stores or HTTP.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ragboost.errors import RequestError
from ragboost.formats.ragboost_object import FIELD, ragboost_fields
from ragboost.rewriting.json_body import JsonBody, MalformedBodyError

_CREATE_FIELDS = ("model", "system", "metadata")
_MAX_METADATA = 16
_MAX_METADATA_CHARS = 512
# Ours; everything else of a turn's body goes to the backend.
_TURN_FIELDS = ("messages", "query", "documents", FIELD)


class NewSession(NamedTuple):
    """What a client says about a session that it makes."""

    model: str | None
    system: str | None
    metadata: dict[str, str]


class TurnRequest(NamedTuple):
    """A turn as a chat completion request with the whole history.

    Attributes:
        body: the request, with the documents in a `ragboost` object.
        new: the client's new messages, as JSON.
        is_flat: the client gave the documents in a field of their own.
    """

    body: bytes
    new: list[bytes]
    is_flat: bool


def parse_new_session(raw: bytes) -> NewSession:
    """Read the body of `POST /v1/sessions`; an empty one is `{}`.

    Raises:
        RequestError: names the field that is wrong.
    """
    try:
        body = msgspec.json.decode(raw or b"{}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is no JSON in UTF-8: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(f"the body must be an object, got {type(body).__name__}")
    for name in body:
        if name not in _CREATE_FIELDS:
            known = ", ".join(_CREATE_FIELDS)
            raise RequestError(f"{name} is unknown; known are {known}", param=name)
    for name in ("model", "system"):
        if not isinstance(body.get(name), str | None):
            raise RequestError(f"{name} must be a string", param=name)
    metadata = {} if body.get("metadata") is None else body["metadata"]
    _check_metadata(metadata)
    return NewSession(body.get("model"), body.get("system"), metadata)


def make_turn(raw: bytes, history: Sequence[bytes], *, model: str | None) -> TurnRequest:
    """Put a turn behind its session's history.

    Args:
        raw: the client's body: `query` or `messages`, and maybe `documents` or a `ragboost` object;
            its other fields stay.
        history: the session's messages, as JSON.
        model: used where the body names none.

    Raises:
        RequestError: names the field that is wrong.
    """
    try:
        payload = JsonBody(raw)
    except MalformedBodyError as error:
        raise RequestError(f"the body is no JSON object: {error}") from None
    body = payload.fields
    new = _new_messages(payload)
    fields: dict[str, Any] = {
        name: msgspec.Raw(payload.field_bytes(name)) for name in body if name not in _TURN_FIELDS
    }
    if body.get("model") is None and model is not None:
        fields["model"] = model
    fields["messages"] = [msgspec.Raw(message) for message in (*history, *new)]
    ours = dict(ragboost_fields(body))
    if ours.get("session_id") is not None:
        where = f"{FIELD}.session_id"
        raise RequestError(f"{where} cannot be given here: the path names it", param=where)
    is_flat = body.get("documents") is not None
    if is_flat and FIELD in body:
        raise RequestError(f"give either documents or {FIELD}, not both", param="documents")
    documents = body["documents"] if is_flat else ours.get("documents")
    if documents and not _asks(body):
        raise RequestError("documents need a new message of the user", param="messages")
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
            "the new turn is missing: give query, or messages with one or more new messages",
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


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict):
        raise RequestError("metadata must be an object", param="metadata")
    if len(metadata) > _MAX_METADATA:
        raise RequestError(f"metadata must have at most {_MAX_METADATA} entries", param="metadata")
    for name, value in metadata.items():
        if not isinstance(value, str) or max(len(name), len(value)) > _MAX_METADATA_CHARS:
            raise RequestError(
                f"metadata.{name[:40]} must be a string; it and its name may have at most "
                f"{_MAX_METADATA_CHARS} characters",
                param="metadata",
            )
