"""Hold one client's exchange: its request, body and response, and whether it has left."""

import asyncio
import re
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from ragboost.proxy.asgi.errors import error_response
from ragboost.proxy.serving.guarded_protocol import ON_DISCONNECT
from ragboost.requests.headers import (
    RawHeaders,
    decode_value,
    get_header,
    new_request_id,
    printable,
)

REQUEST_ID = b"x-request-id"
_MAX_HELD_BYTES = 8 * 1024 * 1024
_CONVERSATION = re.compile(r"(/(?:sessions|responses|conversations|threads)/+)[^/]+")


Guard = Callable[[Callable[[], None]], None]


class ClientExchange:
    """A client's request being served, its ASGI channel, its response, and what is recorded of it.

    The response is sent by `start_response`, `send_body` and `finish`, or by `send_error`.

        with exchange:                # when the request's body has been received
            ...                       # cancelled when the client disconnects

    The cancellation is absorbed. The server calls when the client disconnects; for one that does
    not know how, a task reads the ASGI channel meanwhile.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, endpoint: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.endpoint = endpoint
        # Of our own server, which calls if the client disconnects, and limits the time of a body.
        self.guard: Guard | None = scope.get("extensions", {}).get(ON_DISCONNECT)
        # Of the request; those of a body that was decoded say what it is now.
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._path = str(scope["path"])
        given_id = get_header(self.headers, REQUEST_ID)
        self.has_given_id = given_id is not None
        self.request_id = given_id or new_request_id()
        self.team = ""  # of the client's API key; empty if there is one team
        self.model = ""  # requested; empty if unknown
        self.outcome = "ok"  # label for metrics, unless the request failed or was refused
        self.status = 0  # of the response; 0 if none was sent
        # For the access log and the span: numbers and short names only.
        self.notes: dict[str, str | int | float | None] = {}
        self.trace_headers: dict[str, str] = {}  # make the proxy's span the backend's parent
        self.counted_bytes = 0  # of the body, among those of all requests
        self.started = time.perf_counter()  # when the request's head was complete
        self.first_byte: float | None = None  # when the response's body began, on the same clock
        self._head: dict[str, Any] | None = None  # of the response, while it is held
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._task: asyncio.Task[Any] | None = None  # to cancel
        self._reader: asyncio.Task[None] | None = None
        self._is_ending = False  # servers report a disconnect after a complete response, too
        self._has_left = False  # the client disconnected before

    @classmethod
    def of(cls, request: Request, *, endpoint: str) -> Self:
        """Return the exchange of a request whose body a route reads, and that starlette answers."""
        return cls(request.scope, request.receive, _send_nothing, endpoint=endpoint)

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        if self.guard is not None:
            self.guard(self._cancel)
        else:
            self._reader = asyncio.create_task(self._read_until_disconnect())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._is_ending = True
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None  # its cancellation refers to this object
        if not self._has_left or self._task is None:
            return False
        self.outcome = "client_left"
        # A count remains if something else cancelled the task too, such as the server's shutdown.
        return self._task.uncancel() == 0 and kind is asyncio.CancelledError

    @property
    def method(self) -> str:
        return str(self.scope["method"])

    @property
    def is_unanswered(self) -> bool:
        """No part of a response was sent."""
        return not self.status or self._head is not None

    @property
    def target(self) -> str:
        """Path and query, encoded as the client sent them, without a path where the app is mounted,
        such as Ray Serve's route prefix."""
        path: bytes = self.scope.get("raw_path") or quote(self.scope["path"]).encode()
        if root_path := self.scope.get("root_path"):
            mount = quote(root_path).encode()
            path = path.removeprefix(mount) if path.startswith(mount + b"/") else path
        query: bytes = self.scope["query_string"]
        # Without a slash, it could become part of the backend's address.
        if not path.startswith(b"/") and path != b"*":
            path = b"/" + path
        return decode_value(path + b"?" + query if query else path)

    @property
    def shown_path(self) -> str:
        """Path for logs: printable, without the ids of conversations."""
        return printable(_CONVERSATION.sub(r"\1*", self._path))

    async def send_error(self, status: int, message: str, **fields: Any) -> None:
        """Send an error of the proxy's own; `fields` are those of `error_response`."""
        self._is_ending, self.status = True, status
        response = error_response(status, message, request_id=self.request_id, **fields)
        await response(self.scope, self.receive, self.send)

    async def start_response(self, status: int, headers: RawHeaders, *, is_held: bool) -> None:
        """Send the head, or hold it until `finish`, with up to 8 MiB of the body."""
        # Servers send no other statuses, which clients are to read as an error (RFC 9110, 15).
        self.status = status = status if 100 <= status <= 599 else 502
        if status in (204, 304):  # servers wait for as many bytes as are announced
            headers = [header for header in headers if header[0] != b"content-length"]
        head = {"type": "http.response.start", "status": status, "headers": list(headers)}
        if is_held:
            self._head = head
        else:
            await self.send(head)

    async def send_body(self, data: bytes) -> None:
        if self._head is None:
            await self.send({"type": "http.response.body", "body": data, "more_body": True})
            return
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > _MAX_HELD_BYTES:
            await self.release()

    async def finish(self, data: bytes, *, header: tuple[bytes, bytes] | None = None) -> None:
        """Send the last part of the body; the header is added to a head that was held."""
        self._is_ending = True
        if self._head is not None:
            if header is not None:
                self._head["headers"].append(header)
            data = b"".join([*self._held, data])
            self._held = []
            await self.release()
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def release(self) -> None:
        if self._head is None:
            return
        head, self._head = self._head, None
        held, self._held = self._held, []
        await self.send(head)
        if held:
            await self.send_body(b"".join(held))

    async def cut(self, event: bytes | None) -> None:
        """End the response early, which the client sees as incomplete, or with a last event."""
        self._is_ending = True
        if event is not None:
            await self.send({"type": "http.response.body", "body": event, "more_body": False})

    async def _read_until_disconnect(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        self._cancel()

    def _cancel(self) -> None:
        if not self._is_ending and self._task is not None:
            self._has_left = True
            self._task.cancel()


async def _send_nothing(_message: Message) -> None:
    raise AssertionError("the route returns the response")
