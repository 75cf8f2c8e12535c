"""One request of an HTTP/1.1 connection and its response: the ASGI channel of an application."""

import asyncio
from collections.abc import Callable, Iterable, MutableMapping
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol

from ragboost.config import ProxySettings
from ragboost.errors import ServerBusyError
from ragboost.serving.body_budget import BodyBudget
from ragboost.serving.errors import error_body

Message = MutableMapping[str, Any]
Headers = Iterable[tuple[bytes, bytes]]

CONNECTION_EXTENSION = "ragboost.connection"
"""Key in `scope["extensions"]` under which an exchange passes what its server does for the app.

`watch` is a function that takes a callback for the loss of the connection, called at once if it is
lost already, or None to remove the callback. `body_timeout_s` are the seconds after which the
server refuses a request whose body has not arrived. `take` counts bytes that the body has gained by
decoding among those of all bodies until the request has ended; false: they are too many.
"""

_STATUS_LINES = {
    status: b"HTTP/1.1 %d %b" % (status, status.phrase.encode()) for status in HTTPStatus
}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUSES_WITHOUT_BODY = (204, 304)
_FRAMING_HEADERS = frozenset({b"connection", b"content-length", b"transfer-encoding"})


class Wire(Protocol):
    is_write_paused: bool  # the client does not read; wait for `drain` before writing more

    @property
    def default_headers(self) -> Headers: ...

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the client reads again, or has disconnected."""

    def answered(self, exchange: "HttpExchange") -> None: ...

    def refuse(self, status: int, message: str) -> None: ...

    def abort(self) -> None: ...


class _Framing(Enum):
    NO_BODY = 0
    LENGTH = 1
    CHUNKED = 2
    UNTIL_CLOSE = 3


class HttpExchange:
    """A request and its response.

    A body is received as one message, whatever its pieces. One over the limit is received as far as
    it was kept, with `more_body`; an application that wants more of it anyway gets none.
    """

    def __init__(
        self,
        wire: Wire,
        scope: dict[str, Any],
        *,
        limits: ProxySettings,
        budget: BodyBudget,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self.scope = scope
        self._is_head_request = scope["method"] == "HEAD"
        self._is_http_1_0 = scope["http_version"] == "1.0"
        self.num_bytes = 0  # bytes of the body that have arrived
        self.keep_alive = keep_alive  # the connection may be used again after the response
        self.is_received = False  # the request has arrived completely
        self.has_started = self.is_answered = False  # the response's head was sent, and all of it
        self.is_disconnected = False  # the client has left, or its request was refused
        connection = {
            "watch": self.watch,
            "body_timeout_s": limits.body_timeout_s,
            "take": self._take,
        }
        scope["extensions"] = {CONNECTION_EXTENSION: connection}
        self._wire = wire
        self._max_body_bytes = limits.max_body_bytes
        self._budget = budget
        self._num_counted = 0  # bytes of the body that count in the budget
        self._is_over_budget = False
        self._expects_continue = expects_continue
        self._body: list[bytes] = []
        self._is_passed = False
        self._changed: asyncio.Event | None = None
        self._on_lost: Callable[[], None] | None = None
        self._framing = _Framing.NO_BODY
        self._remaining = 0  # bytes still to send, with a content-length

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        self._on_lost = on_lost
        if on_lost is not None and self.is_disconnected:
            on_lost()

    def feed(self, data: bytes) -> None:
        if self.num_bytes <= self._max_body_bytes and not self._is_over_budget:
            if self._take(len(data)):
                self._body.append(data)
            else:
                self._is_over_budget = True
                self._drop_body()
                self._wake()
        self.num_bytes += len(data)
        if self.num_bytes > self._max_body_bytes:
            self._wake()

    def finish_request(self) -> None:
        self.is_received = True
        self._wake()

    def disconnect(self) -> None:
        if self.is_disconnected:
            return
        self.is_disconnected = True
        self._wake()
        if self._on_lost is not None:
            self._on_lost()

    def close(self) -> None:
        """Let go of the body and of the scope, whose extension refers to this exchange: without
        this, every request would leave a cycle, which only the garbage collector frees."""
        self._drop_body()
        self.scope = {}

    def fail(self, status: int, message: str) -> None:
        if self.has_started or self.is_disconnected:
            self._wire.abort()
            return
        body = error_body(status, message)
        self.keep_alive = False
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        self._start(status, headers)
        self._write_body(body, is_last=True)

    async def receive(self) -> Message:
        """Return the body as one message; after that, wait for the client to disconnect."""
        if self._expects_continue and not self.has_started:
            self._expects_continue = False
            self._wire.write(_CONTINUE)
        if self._is_passed and not (self.is_received or self.is_disconnected):
            limit = self._max_body_bytes
            self._wire.refuse(413, f"the request body has more than {limit} bytes")
        while not self._has_message():
            self._changed = self._changed or asyncio.Event()
            self._changed.clear()
            await self._changed.wait()
        if self.is_disconnected or self.is_answered:
            return {"type": "http.disconnect"}
        if self._is_over_budget:
            raise ServerBusyError(
                f"the bodies of all requests have more than {self._budget.max_bytes} bytes "
                "(proxy.max_total_body_bytes); retry"
            )
        self._is_passed = True
        pieces, self._body = self._body, []
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": not self.is_received}

    async def send(self, message: Message) -> None:
        """Send the response's head, or bytes of its body; RuntimeError if out of order."""
        if self._wire.is_write_paused and not self.is_disconnected:
            await self._wire.drain()
        if self.is_disconnected:
            return
        kind = message["type"]
        if kind == "http.response.body" and self.has_started and not self.is_answered:
            self._write_body(message.get("body", b""), is_last=not message.get("more_body", False))
        elif kind == "http.response.start" and not self.has_started:
            self._start(message["status"], message.get("headers", ()))
        else:
            raise RuntimeError(f"unexpected ASGI message {kind!r}")

    def _has_message(self) -> bool:
        if self.is_disconnected or self.is_answered or self._is_over_budget:
            return True
        is_over_limit = self.num_bytes > self._max_body_bytes
        return not self._is_passed and (self.is_received or is_over_limit)

    def _take(self, num_bytes: int) -> bool:
        has_room = self._budget.take(num_bytes)
        self._num_counted += num_bytes if has_room else 0
        return has_room

    def _drop_body(self) -> None:
        self._budget.give_back(self._num_counted)
        self._num_counted, self._body = 0, []

    def _wake(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _start(self, status: int, headers: Headers) -> None:
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]  # type: ignore[call-overload]
        length: int | None = None
        for name, value in (*self._wire.default_headers, *headers):
            name = name.lower()
            if name in _FRAMING_HEADERS:
                if name == b"connection":
                    self.keep_alive = self.keep_alive and b"close" not in value.lower()
                elif name == b"content-length":
                    length = int(value)
                if name != b"content-length" or status == 204:
                    continue
            lines.append(b"%b: %b" % (name, value))
        self._frame(status, length)
        # The rest of a request that is answered early is not read as the next one.
        self.keep_alive = self.keep_alive and self.is_received
        if self._framing is _Framing.CHUNKED:
            lines.append(b"transfer-encoding: chunked")
        if not self.keep_alive:
            lines.append(b"connection: close")
        head = b"\r\n".join(lines)
        if head.count(b"\n") >= len(lines) or head.count(b"\r") >= len(lines):
            raise RuntimeError("a header of the response has a line break")
        self.has_started = True
        self._wire.write(head + b"\r\n\r\n")

    def _frame(self, status: int, length: int | None) -> None:
        if self._is_head_request or status in _STATUSES_WITHOUT_BODY:
            self._framing = _Framing.NO_BODY
        elif length is not None:
            self._framing, self._remaining = _Framing.LENGTH, length
        elif self._is_http_1_0:
            self._framing, self.keep_alive = _Framing.UNTIL_CLOSE, False
        else:
            self._framing = _Framing.CHUNKED

    def _write_body(self, body: bytes, *, is_last: bool) -> None:
        if self._framing is _Framing.LENGTH:
            self._remaining -= len(body)
            if self._remaining < 0 or (is_last and self._remaining):
                raise RuntimeError("the response's body contradicts its content-length")
        elif self._framing is _Framing.CHUNKED:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk + b"0\r\n\r\n" if is_last else chunk
        elif self._framing is _Framing.NO_BODY:
            body = b""
        if body:
            self._wire.write(body)
        if is_last:
            self.is_answered = True
            self._wake()
            self._wire.answered(self)
