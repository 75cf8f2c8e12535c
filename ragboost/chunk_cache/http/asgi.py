"""Read, replay and answer ASGI requests, and call another route of the same server."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import msgspec

from ragboost.errors import RequestError, error_object

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY_HEADERS = (b"content-length", b"transfer-encoding", b"content-encoding", b"expect")
MAX_BODY_BYTES = 64 << 20


class RequestBody(NamedTuple):
    data: bytes
    is_whole: bool  # and not larger than what is kept in memory
    receive: Receive


async def read_body(receive: Receive) -> RequestBody:
    """Read a body, but no more than is kept in memory."""
    parts: list[bytes] = []
    size, is_whole = 0, False
    while size <= MAX_BODY_BYTES:
        message = await receive()
        if message["type"] != "http.request":
            break
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body"):
            is_whole = True
            break
    data = b"".join(parts)
    return RequestBody(data, is_whole, replay(data, receive, is_whole=is_whole))


def replay(data: bytes, then: Receive | None = None, *, is_whole: bool = True) -> Receive:
    """Return a `receive` that gives a body that has been read, and then asks `then`; without it
    nothing more comes, and the client stays."""
    is_replayed = False

    async def receive() -> Message:
        nonlocal is_replayed
        if not is_replayed:
            is_replayed = True
            return {"type": "http.request", "body": data, "more_body": not is_whole}
        if then is not None:
            return await then()
        await asyncio.Event().wait()  # until the server drops this request
        raise AssertionError

    return receive


async def respond(send: Send, status: int, fields: Any) -> None:
    body = msgspec.json.encode(fields)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def refusal(error: RequestError) -> dict[str, Any]:
    kind = "server_error" if error.status >= 500 else "invalid_request_error"
    code = getattr(error, "code", "invalid_value")
    return error_object(str(error), kind=kind, code=code, param=error.param)


async def refuse(send: Send, error: RequestError) -> None:
    await respond(send, error.status, refusal(error))


def read_json(data: bytes) -> dict[str, Any] | None:
    try:
        fields = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


async def call_route(app: App, scope: Scope, path: str, fields: Any) -> dict[str, Any] | None:
    """POST JSON to a route with the headers, and so the rights, of a request; return its JSON."""
    status, answer = await _call(app, scope, "POST", path, msgspec.json.encode(fields))
    return read_json(answer) if status == 200 else None


async def check_key(app: App, scope: Scope) -> None:
    """Raise `RequestError` unless the server lets a request with these headers list its models."""
    status, _ = await _call(app, scope, "GET", "/v1/models", b"")
    if status in (401, 403):
        error = RequestError("the engine's API key is missing or wrong")
        error.status = status
        raise error


async def _call(app: App, scope: Scope, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    status, parts = 500, []

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    inner = with_body_length({**scope, "query_string": b""}, len(body))
    inner["method"], inner["path"] = method, scope.get("root_path", "") + path
    inner["raw_path"] = inner["path"].encode()
    inner["state"] = dict(scope.get("state") or {})
    await app(inner, replay(body), send)
    return status, b"".join(parts)


def with_body_length(scope: Scope, num_bytes: int) -> Scope:
    headers = [(name, value) for name, value in scope["headers"] if name not in _BODY_HEADERS]
    return {**scope, "headers": [*headers, (b"content-length", b"%d" % num_bytes)]}
