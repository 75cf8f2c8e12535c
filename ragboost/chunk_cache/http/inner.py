"""Call another route of the server that a middleware is in.

Knows ASGI. Does not know any route.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

import msgspec

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_BODY_HEADERS = (b"content-length", b"transfer-encoding", b"content-encoding", b"expect")


class InnerResponse(NamedTuple):
    """Response of a route of the same server."""

    status: int
    body: bytes

    def json(self) -> Any:
        """Return the decoded body, or None if the request failed or the body is not JSON."""
        try:
            return msgspec.json.decode(self.body) if self.status == 200 else None
        except (msgspec.DecodeError, RecursionError):
            return None


async def call_route(app: App, scope: Scope, path: str, fields: Any) -> InnerResponse:
    """POST JSON to a route with the headers, and so the rights, of a request.

    Args:
        app: the rest of the server, behind the middleware.
        scope: of the request.
        path: of the route.
        fields: body, encoded as JSON.
    """
    body = msgspec.json.encode(fields)
    status, parts = 500, []

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    inner = with_body_length({**scope, "query_string": b""}, len(body))
    inner["path"] = scope.get("root_path", "") + path
    inner["raw_path"] = inner["path"].encode()
    inner["state"] = dict(scope.get("state") or {})
    await app(inner, replay(body), send)
    return InnerResponse(status, b"".join(parts))


def with_body_length(scope: Scope, num_bytes: int) -> Scope:
    """Return the scope of the same request with a plain body of this length."""
    headers = [(name, value) for name, value in scope["headers"] if name not in _BODY_HEADERS]
    return {**scope, "headers": [*headers, (b"content-length", b"%d" % num_bytes)]}


def replay(body: bytes, then: Receive | None = None) -> Receive:
    """Return a `receive` that gives a body that has been read already.

    Args:
        body: given first.
        then: asked afterwards; None: nothing more comes, and the client stays.
    """
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if not is_given:
            is_given = True
            return {"type": "http.request", "body": body, "more_body": False}
        if then is not None:
            return await then()
        await asyncio.Event().wait()  # until the server drops this request
        raise AssertionError

    return receive
