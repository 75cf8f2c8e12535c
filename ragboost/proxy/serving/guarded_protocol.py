"""Limit and refuse what uvicorn's HTTP/1.1 protocol takes from a client.

Knows connections, bytes and time. Does not know what a request asks for.

NOTE: relies on internals of uvicorn, which `tests/proxy/serving/test_uvicorn.py` names one by one:
attributes of its protocol, such as `cycle`, `flow` and `pipeline`, how it starts the next request,
and the state of a cycle, which is a request with its response.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from ragboost.config import ProxySettings
from ragboost.proxy.serving.errors import error_body

# In a scope's `extensions`: sets a function to call if the client disconnects before the response
# is complete. A server that has it also limits the time of a request's body.
ON_DISCONNECT = "ragboost.on_disconnect"
_LINGER_S = 1.0
_MAX_HEADERS = 256
_MAX_HEADER_BYTES = 64 * 1024
_MAX_HELD_BYTES = 64 * 1024  # of later requests, before the socket is no longer read
_PIECE_BYTES = 16 * 1024  # parsed at a time: bounds the requests in uvicorn's pipeline


class _HeldFlow(FlowControl):
    """Flow control that stays paused while later requests fill the connection's buffer."""

    is_full = False

    def resume_reading(self) -> None:
        if not self.is_full:
            super().resume_reading()


class GuardedProtocol(HttpToolsProtocol):
    """A client's connection, with limits.

    Bytes behind a complete request wait, unparsed, for its response. Nothing that the client sends
    extends a deadline:

        state                            seconds              then
        no request, or part of a head    header_timeout_s     408 and close
        idle after a response            keep_alive_s         close
        part of a body                   body_timeout_s       408 and close
        the client reads no response     body_timeout_s       abort
        refused: discarding the rest     1, max_body_bytes    close, abort
        closing: sending the rest        body_timeout_s       abort

    A pending response has none: that is the application's affair.
    """

    limits: ProxySettings  # of bytes and time; set by `guarded_protocol`
    flow: _HeldFlow

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running: RequestResponseCycle | None = None  # `cycle` is the last that was parsed
        self._held = b""
        self._has_begun = True  # bytes came since the last response
        self._num_extra = 0  # bytes since the last that belonged to a body or ended a request
        self._num_discarded = 0
        self._keep_alive = False  # of the request that arrives
        self._refusal: tuple[int, str] | None = None  # behind the responses that are due
        self._is_closing = False  # whatever comes is discarded
        self._is_stopping = False  # the server is
        self._on_disconnect: Callable[[], object] | None = None
        # The head of a response waits for the first bytes of its body, to be written with them.
        self._is_head_due, self._head = True, b""
        self._state = ""
        self._deadline: tuple[float, Callable[[], None]] | None = None
        self._timer: asyncio.TimerHandle | None = None  # perhaps of an earlier deadline

    # Called by the server and the socket

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._socket, self.flow = transport, _HeldFlow(transport)
        # Cycles write to this object, whose `close` lets the client read the response first.
        self.transport = self  # type: ignore[assignment]
        self._update_state()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing, self._head = True, b""
        if self._running is not None:
            self._disconnect(self._running)
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        # No cycle of references is left, so that all of it is freed now.
        self._running = self.cycle = self.scope = None  # type: ignore[assignment]
        self._timer = self._deadline = self._on_disconnect = None
        self.transport = self._socket
        self.pipeline.clear()

    def data_received(self, data: bytes) -> None:
        if self._is_closing or self._refusal is not None:
            self._num_discarded += len(data)
            if self._num_discarded > self.limits.max_body_bytes:
                self._abort()
            return
        self._has_begun = True
        self._held += data
        self._parse_held()
        self._update_state()

    def pause_writing(self) -> None:
        super().pause_writing()
        if not self._is_closing:
            self._state = "stalled"
            self._set_deadline(self.limits.body_timeout_s, self._abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_state()

    def shutdown(self) -> None:
        self._is_stopping = True
        super().shutdown()
        if self._is_closing:
            self._close_socket()

    # Called by cycles, as their transport

    def write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._socket.writelines((head, data))
        elif self._is_head_due:
            self._is_head_due, self._head = False, data
            self.loop.call_soon(self._write_head)
        else:
            self._socket.write(data)

    def _write_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._socket.write(head)

    def is_closing(self) -> bool:
        return self._is_closing or self._socket.is_closing()

    def close(self) -> None:
        """Close the connection when all is sent.

        Behind a refusal or a last response the client may still be sending. If its bytes met a
        closed socket, it would be reset and might not see the response: they are discarded for a
        while.
        """
        if self._is_closing:
            return
        self._write_head()
        self._is_closing, self._held, self.flow.is_full = True, b"", False
        is_last = self._running is not None and not self._running.keep_alive
        is_open = not (self._is_stopping or self._socket.is_closing())
        if (is_last or self._refusal) and is_open and self._socket.can_write_eof():
            self._socket.write_eof()
            self.flow.resume_reading()
            self._set_deadline(_LINGER_S, self._close_socket)
        else:
            self._close_socket()

    def _close_socket(self) -> None:
        self._socket.close()
        self._set_deadline(self.limits.body_timeout_s, self._abort)

    def _abort(self) -> None:
        self._is_closing = True
        self._socket.abort()

    def on_response_complete(self) -> None:
        """Start the next request; unlike uvicorn's own, with one timer for all deadlines."""
        self.server_state.total_requests += 1
        self._running = self.pipeline[-1][0] if self.pipeline else self.cycle
        self._is_head_due, self._on_disconnect = True, None
        if self.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if self._refusal is not None:
            self._refuse(*self._refusal)
            return
        self._has_begun = bool(self._held) or self.scope is not self.cycle.scope
        if self._has_begun:
            self._parse_held()
        self._update_state()

    # Called by the application

    def _watch(self, callback: Callable[[], object]) -> None:
        """Call a function if the client disconnects before the response is complete."""
        self._on_disconnect = callback
        if self._running is None or self._running.disconnected:
            self.loop.call_soon(callback)
        else:
            self.flow.resume_reading()  # else the disconnect is not seen

    def _disconnect(self, cycle: RequestResponseCycle) -> None:
        cycle.disconnected = True
        cycle.message_event.set()
        callback, self._on_disconnect = self._on_disconnect, None
        if callback is not None:
            callback()

    # Parsing

    def _is_due(self) -> bool:
        """Return True if the last request is complete and its response is not."""
        cycle = self.cycle
        return cycle is not None and not (cycle.more_body or cycle.response_complete)

    def _parse_held(self) -> None:
        data, position = memoryview(self._held), 0
        while position < len(data) and not (self._is_closing or self._refusal or self._is_due()):
            piece = data[position : position + _PIECE_BYTES]
            position += len(piece)
            self._num_extra += len(piece)
            self._parse(piece)
            if self._num_extra > _MAX_HEADER_BYTES and self._refusal is None:
                self._refuse(431, self._too_large())
        if position:
            self._held = b"" if self._is_closing or self._refusal else bytes(data[position:])
        was_full, self.flow.is_full = self.flow.is_full, len(self._held) > _MAX_HELD_BYTES
        if self.flow.is_full:
            self.flow.pause_reading()
        elif was_full:
            self.flow.resume_reading()

    def _parse(self, piece: memoryview) -> None:
        try:
            while True:
                try:
                    self.parser.feed_data(piece)
                    return
                except HttpParserUpgrade as upgrade:  # at the end of the head, without the body
                    self._parse_without_upgrade()
                    piece = piece[upgrade.args[0] :]
        except HttpParserError as error:
            self._refuse(*(self._refusal or (400, f"invalid HTTP request: {error}")))

    def _parse_without_upgrade(self) -> None:
        """Parse a head again without its `upgrade`, for which the parser drops the body."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        lines = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = HttpRequestParser(self)
        self.parser.feed_data(b"\r\n".join(lines) + b"\r\n\r\n")

    def on_headers_complete(self) -> None:
        self._refusal = self._problem()
        if self._refusal is not None:
            raise HttpParserError(self._refusal[1])  # ends the parsing
        if self.parser.should_upgrade():
            return
        super().on_headers_complete()
        self.scope["headers"] = self.headers.copy()  # uvicorn adds the trailers to its own
        self.scope["extensions"] = {ON_DISCONNECT: self._watch}  # type: ignore[dict-item]
        # A client that is answered before its request has arrived must not use the connection
        # again: its bytes could be read as another request.
        self._keep_alive, self.cycle.keep_alive = self.cycle.keep_alive, False
        if not self.pipeline:
            self._running = self.cycle

    def on_body(self, body: bytes) -> None:
        self._num_extra = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._num_extra = 0
        super().on_message_complete()
        if not (self.cycle.response_started or self._is_stopping):
            self.cycle.keep_alive = self._keep_alive

    # Refusing

    def _problem(self) -> tuple[int, str] | None:
        """Return status and message for a head that is refused."""
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            return 505, "only HTTP/1.1 and HTTP/1.0 are supported"
        if self.parser.get_method() == b"CONNECT":
            return 501, "CONNECT is not supported"
        if b"#" in self.url:
            return 400, "invalid HTTP request: a fragment in the request target"
        num_hosts, num_bytes = 0, len(self.url)
        for name, value in self.headers:
            num_bytes += len(name) + len(value) + 4
            if name == b"host":
                num_hosts += 1
            elif name == b"transfer-encoding" and value.lower() != b"chunked":
                return 501, "the only supported transfer-encoding is chunked"
        if num_bytes > _MAX_HEADER_BYTES or len(self.headers) > _MAX_HEADERS:
            return 431, self._too_large()
        if num_hosts > 1 or (version == "1.1" and not num_hosts):
            return 400, f"invalid HTTP request: {num_hosts} Host headers"
        return None

    def _too_large(self) -> str:
        return f"the request head has more than {_MAX_HEADER_BYTES} bytes or {_MAX_HEADERS} headers"

    def _refuse(self, status: int, message: str) -> None:
        """Refuse the request that arrives, behind the responses that are due before."""
        self._refusal = status, message
        if self._is_due() or self.pipeline:
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            self._disconnect(cycle)
            if cycle.response_started:  # the client must not take the response for complete
                self._abort()
                return
        body = error_body(status, message)
        self.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, len(body), body)
        )
        self.close()

    # Deadlines

    def _update_state(self) -> None:
        if self._is_closing or self.flow.write_paused:
            return
        cycle, state = self.cycle, ""
        if cycle is None or cycle.response_complete:
            state = "head" if self._has_begun else "idle"
        elif cycle.more_body:
            state = "body"
        if state == self._state:
            return
        self._state, limits = state, self.limits
        if state == "idle":
            self._set_deadline(limits.keep_alive_s, self.close)
        elif state:
            seconds = limits.header_timeout_s if state == "head" else limits.body_timeout_s
            self._set_deadline(seconds, self._refuse_slow)
        else:
            self._deadline = None

    def _refuse_slow(self) -> None:
        head, body = self.limits.header_timeout_s, self.limits.body_timeout_s
        seconds = head if self._state == "head" else body
        self._refuse(408, f"the request {self._state} took more than {seconds:g} s")

    def _set_deadline(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call a function in so many seconds, unless the deadline changes before.

        The timer of an earlier deadline is kept, since most of them change: a new one is set only
        if it would be late, or when it finds that it is early.
        """
        due = self.loop.time() + seconds
        self._deadline = due, callback
        if self._timer is None or due < self._timer.when():
            self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(due, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline is None:
            return
        due, callback = self._deadline
        if self.loop.time() < due:
            self._set_timer(due)
        else:
            self._deadline = None
            callback()


def guarded_protocol(limits: ProxySettings) -> type[GuardedProtocol]:
    """Return the protocol class for the connections of one server."""
    return type("GuardedProtocol", (GuardedProtocol,), {"limits": limits})
