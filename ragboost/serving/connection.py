"""HTTP/1.1 connections of a server: parsed by httptools, limited in bytes and in time.

Takes the place of uvicorn's protocol classes; the server itself is uvicorn's. Of uvicorn only what
`tests/serving/test_connection.py` checks is used: how its server makes and stops a connection, and
the attributes of `ServerState`.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from ragboost.config import ProxySettings
from ragboost.serving.errors import error_body
from ragboost.serving.exchange import Headers, HttpExchange

logger = logging.getLogger(__name__)

_LINGER_S = 1.0
_MAX_HELD_BYTES = 64 * 1024  # of later requests, before the socket is no longer read
_MAX_QUEUED = 16  # requests; more than one only where pieces of a chunked body end together
_CHUNK_FRAME_BYTES = 8  # a chunk's size and line ends, generously
_END = b"\r\n\r\n"
_CHECKED = frozenset({b"content-length", b"expect", b"transfer-encoding"})


class HttpConnection(asyncio.Protocol):
    """A client's connection; httptools calls its `on_` methods.

    Requests are parsed one at a time: what follows a complete request is held back, up to a limit,
    until its response was sent. In each of its states a connection has a deadline, which nothing
    that the client sends extends:

        state                            seconds              then
        no request, or part of a head    header_timeout_s     408 and close
        no request since the last one    keep_alive_s         close
        part of a body                   body_timeout_s       408 and close
        the client reads no response     body_timeout_s       abort
        refused: discarding the rest     1, max_body_bytes    abort
        closing: sending the rest        body_timeout_s       abort

    A pending response has none: that is the application's affair.

    Attributes:
        limits: of bytes and time; set by `http_connection`.
        is_write_paused: the client does not read.
        transport: None after the connection was lost.
    """

    limits: ProxySettings

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.is_write_paused = False
        self._app = config.loaded_app
        self._root_path = config.root_path
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_event_loop()
        self.transport: asyncio.Transport | None = None
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._addresses: dict[str, Any] = {}
        # Requests: the one that arrives, the one that is answered, and those in between.
        self._receiving: HttpExchange | None = None
        self._running: HttpExchange | None = None
        self._queue: deque[HttpExchange] = deque()
        self._held = bytearray()
        self._is_read_paused = False
        self._is_closing = False  # whatever comes is discarded
        self._is_stopping = False  # the server is
        self._num_discarded = 0
        self._is_writable: asyncio.Event | None = None
        self._refusal: tuple[int, str] | None = None
        # The head that is being parsed.
        self._head_bytes = 0
        self._head_tail = b""
        self._is_in_head = self._is_upgrade = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._content_length: int | None = None
        self._coding: bytes | None = None
        self._expects_continue = False
        # The chunks of a body.
        self._raw_bytes = self._num_chunks = 0
        # Deadline
        self._state = ""
        self._deadline: float | None = None
        self._on_deadline: Callable[[HttpConnection], None] = HttpConnection.abort
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0.0

    @property
    def default_headers(self) -> Headers:
        """Headers that the server adds to every response."""
        return self._server.default_headers

    # Called by the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._server.connections.add(self)  # type: ignore[arg-type]  # it calls `shutdown` only
        self._addresses = {
            "client": _address(transport.get_extra_info("peername")),
            "server": _address(transport.get_extra_info("sockname")),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self._update_state()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.transport = None
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.resume_writing()
        for exchange in (self._running, *self._queue):
            if exchange is not None:
                exchange.disconnect()
        # End every cycle through this object, so that it is freed now and not by the collector.
        for exchange in self._queue:
            exchange.forget_scope()
        self._running = self._receiving = None
        self._queue.clear()
        self._parser = None

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            self._num_discarded += len(data)
            if self._num_discarded > self.limits.max_body_bytes:
                self.abort()
            return
        self._feed(data)
        self._update_state()

    def pause_writing(self) -> None:
        self.is_write_paused = True
        if not self._is_closing:
            self._state = "stalled"
            self._expect(self.limits.body_timeout_s, HttpConnection.abort)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._is_writable is not None:
            self._is_writable.set()
        self._update_state()

    def shutdown(self) -> None:
        """Close the connection, after the response if one is pending."""
        self._is_stopping = True
        if self._running is None:
            self._close()
        else:
            self._running.keep_alive = False

    # Called by exchanges

    def write(self, data: bytes) -> None:
        if self.transport is not None:
            self.transport.write(data)

    async def drain(self) -> None:
        self._is_writable = self._is_writable or asyncio.Event()
        self._is_writable.clear()
        await self._is_writable.wait()

    def answered(self, exchange: HttpExchange) -> None:
        self._server.total_requests += 1
        if self._is_closing:
            return
        self._running = None
        if not exchange.keep_alive:
            self._close(lingers=True)
            return
        if self._queue:
            self._start(self._queue.popleft())
        elif self._refusal is not None:
            self.refuse(*self._refusal)
            return
        if self._held:
            data, self._held = bytes(self._held), bytearray()
            self._feed(data)
        if self._is_read_paused and len(self._held) <= _MAX_HELD_BYTES:
            self._resume_reading()
        self._state = "response"
        self._update_state()

    def refuse(self, status: int, message: str) -> None:
        if self._is_closing:
            return
        running = self._running
        if running is not None and running.is_received:
            self._refusal = status, message  # the refused request is behind responses that are due
            return
        if running is not None:
            running.disconnect()
        if running is not None and running.has_started:
            self.abort()  # the client must not take the response for complete
            return
        body = error_body(status, message)
        self.write(
            b"HTTP/1.1 %d Refused\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%b" % (status, len(body), body)
        )
        self._close(lingers=True)

    def abort(self) -> None:
        self._is_closing = True
        if self.transport is not None:
            self.transport.abort()

    # Parsing

    def _feed(self, data: bytes) -> None:
        """Parse requests, and hold back what follows a complete one."""
        view, position = memoryview(data), 0
        while position < len(data) and not self._is_closing:
            if self._running is not None and self._receiving is None:
                self._hold(data[position:])
                return
            end = self._find_end(data, position)
            if self._receiving is None:
                self._head_bytes += end - position
                if self._head_bytes > self.limits.max_header_bytes:
                    limit = self.limits.max_header_bytes
                    self._refuse_request(
                        431,
                        f"the request head has more than {limit} bytes (proxy.max_header_bytes)",
                    )
                    return
                self._head_tail = (self._head_tail + data[max(position, end - 3) : end])[-3:]
            self._parse(view[position:end])
            position = end

    def _find_end(self, data: bytes, position: int) -> int:
        """Return the end of the bytes that cannot belong to two requests, or hardly."""
        if self._receiving is None:
            if tail := self._head_tail:
                found = (tail + data[position : position + 3]).find(_END)
                if found >= 0:
                    return position + found + len(_END) - len(tail)
            found = data.find(_END, position)
        elif self._content_length is not None:
            return position + self._content_length - self._receiving.num_bytes
        else:
            found = data.find(_END, position + 256)
        return found + len(_END) if found >= 0 else len(data)

    def _parse(self, piece: memoryview) -> None:
        exchange = self._receiving
        assert self._parser is not None, "data after the loss of the connection"
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as upgrade:
            if self._refusal is None:
                self._parse_without_upgrade(piece[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if self._refusal is None:
                self._refusal = 400, f"invalid HTTP request: {error}"
        if (
            exchange is not None
            and self._receiving in (exchange, None)
            and not self._content_length
        ):
            self._raw_bytes += len(piece)
            frames = self._raw_bytes - exchange.num_bytes - _CHUNK_FRAME_BYTES * self._num_chunks
            if frames > self.limits.max_header_bytes:
                self._refusal = 431, "the chunked body's framing is too large"
        if self._refusal is not None:
            self._refuse_request(*self._refusal)

    def _parse_without_upgrade(self, rest: memoryview) -> None:
        """Parse a head again without its `upgrade`, for which the parser drops the body."""
        assert self._parser is not None, "data after the loss of the connection"
        lines = [
            b"%b %b HTTP/%b"
            % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._is_upgrade = False
        self._parse(memoryview(b"\r\n".join(lines) + _END))
        if rest and not self._is_closing:
            self._parse(rest)

    def _refuse_request(self, status: int, message: str) -> None:
        self._receiving = None
        self.refuse(status, message)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > _MAX_HELD_BYTES and not self._is_read_paused:
            # Until it reads again, the transport does not report that the client has left either.
            self._is_read_paused = True
            if self.transport is not None:
                self.transport.pause_reading()

    def _resume_reading(self) -> None:
        self._is_read_paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._is_in_head, self._is_upgrade = True, False
        self._content_length, self._coding = None, None
        self._expects_continue = False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer, which is dropped
        name = name.lower()
        self._headers.append((name, value))
        if name in _CHECKED:
            if name == b"content-length":
                self._content_length = int(value)
            elif name == b"transfer-encoding":
                self._coding = value.lower()
            else:
                self._expects_continue = value.lower() == b"100-continue"

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._refusal is not None or self._parser is None:
            return
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self._refusal = self._find_problem(method, version)
        self._is_upgrade = self._parser.should_upgrade()
        if self._refusal is not None or self._is_upgrade:
            return
        self._head_bytes, self._head_tail = 0, b""
        self._raw_bytes = self._num_chunks = 0
        self._receiving = exchange = HttpExchange(
            self,
            self._scope(method.decode(), version),
            max_body_bytes=self.limits.max_body_bytes,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=self._expects_continue and version != "1.0",
        )
        if self._running is None:
            self._start(exchange)
        else:
            self._queue.append(exchange)

    def on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.feed(data)

    def on_chunk_header(self) -> None:
        self._num_chunks += 1

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            exchange, self._receiving = self._receiving, None
            exchange.finish_request()

    def _find_problem(self, method: bytes, version: str) -> tuple[int, str] | None:
        if version not in ("1.1", "1.0"):
            return 505, "only HTTP/1.1 and HTTP/1.0 are supported"
        if method == b"CONNECT":
            return 501, "CONNECT is not supported"
        if self._coding is not None and self._coding != b"chunked":
            return 501, "the only supported transfer-encoding is chunked"
        if len(self._queue) >= _MAX_QUEUED:
            return 400, "too many requests at a time on one connection"
        return None

    def _scope(self, method: str, version: str) -> dict[str, Any]:
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/") and path != b"*":
            parsed = httptools.parse_url(self._url)
            path, query = parsed.path or b"/", parsed.query or b""
        decoded = path.decode("ascii")
        if "%" in decoded:
            decoded = unquote(decoded)
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": method,
            "root_path": self._root_path,
            "path": self._root_path + decoded,
            "raw_path": self._root_path.encode("ascii") + path,
            "query_string": query,
            "headers": self._headers,
            "state": self._app_state.copy(),
            **self._addresses,
        }

    # Running the application

    def _start(self, exchange: HttpExchange) -> None:
        self._running = exchange
        task = self._loop.create_task(self._app(exchange.scope, exchange.receive, exchange.send))
        self._server.tasks.add(task)
        task.add_done_callback(lambda task: self._ended(exchange, task))

    def _ended(self, exchange: HttpExchange, task: asyncio.Task[None]) -> None:
        self._server.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            level = logging.DEBUG if exchange.is_disconnected else logging.ERROR
            logger.log(level, "Exception in ASGI application", exc_info=error)
        if exchange.is_answered or exchange.is_disconnected:
            pass
        elif task.cancelled():
            exchange.fail(503, "the server is shutting down")
        else:
            exchange.fail(500, "internal error; see the server's log")
        exchange.forget_scope()

    # Deadlines

    def _close(self, *, lingers: bool = False) -> None:
        """Close the connection when all is sent.

        Args:
            lingers: the client may still be sending. If its bytes met a closed socket, it would be
                reset and might not see the response: discard them for a while.
        """
        self._is_closing, self._deadline = True, None
        self._held.clear()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if lingers and not self._is_stopping and transport.can_write_eof():
            if self._is_read_paused:
                self._resume_reading()
            transport.write_eof()
            self._expect(_LINGER_S, HttpConnection._close)
        elif transport.get_write_buffer_size():
            transport.close()
            self._expect(self.limits.body_timeout_s, HttpConnection.abort)
        else:
            transport.close()

    def _update_state(self) -> None:
        """Set the deadline of the connection's state, if it is another one than before."""
        if self._is_closing or self.is_write_paused:
            return
        limits = self.limits
        if self._running is None:
            is_idle = not self._head_bytes and self._state in ("response", "idle")
            state = "idle" if is_idle else "head"
        else:
            state = "response" if self._receiving is None else "body"
        if state == self._state:
            return
        self._state, self._deadline = state, None
        if state == "idle":
            self._expect(limits.keep_alive_s, HttpConnection._close)
        elif state != "response":
            seconds = limits.header_timeout_s if state == "head" else limits.body_timeout_s
            self._expect(seconds, HttpConnection._refuse_slow)

    def _refuse_slow(self) -> None:
        is_head = self._state == "head"
        seconds = self.limits.header_timeout_s if is_head else self.limits.body_timeout_s
        part = "head" if is_head else "body"
        self._refuse_request(408, f"the request {part} took more than {seconds:g} s")

    def _expect(self, seconds: float, then: Callable[["HttpConnection"], None]) -> None:
        """Call `then` after so many seconds, unless another deadline is set before.

        The timer of an earlier deadline is kept: it finds that it is too early, and sets another.
        """
        self._deadline, self._on_deadline = self._loop.time() + seconds, then
        if self._timer is None or self._deadline < self._timer_due:
            self._set_timer(self._deadline)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_at(due, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._deadline is None or self.transport is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer(self._deadline)
        else:
            self._deadline = None
            self._on_deadline(self)


def _address(name: Any) -> tuple[str, int] | None:
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None


def http_connection(limits: ProxySettings) -> type[HttpConnection]:
    """Make a class with these limits, for `uvicorn.Config(http=...)`."""
    return type("HttpConnection", (HttpConnection,), {"limits": limits})
