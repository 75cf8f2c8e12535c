"""HTTP/1.1 connections of a server: parsed by httptools, limited in bytes and in time.

Takes the place of uvicorn's protocol classes; `tests/serving/test_connection.py` checks what is
used of its server.
"""

import asyncio
import logging
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.server import ServerState

from ragboost.config import ProxySettings
from ragboost.serving.body_budget import BodyBudget
from ragboost.serving.chunked_body import ChunkedBody
from ragboost.serving.deadline import Deadline
from ragboost.serving.errors import error_body
from ragboost.serving.exchange import Headers, HttpExchange
from ragboost.serving.request_head import HeadScan, RequestHead

logger = logging.getLogger(__name__)

_LINGER_S = 1.0
_MAX_HELD_BYTES = 64 * 1024  # of later requests, before the socket is no longer read
_UNCLEAR_END = 400, "invalid HTTP request: the end of the chunked body is unclear"


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
    """

    limits: ProxySettings  # of bytes and time; set by `http_connection`
    budget: BodyBudget  # of all connections

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.is_write_paused = False  # the client does not read
        self._app = config.loaded_app
        self._root_path = config.root_path
        self._server = server_state
        self._app_state = app_state
        self._loop = _loop or asyncio.get_event_loop()
        self.transport: asyncio.Transport | None = None  # None after the connection was lost
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._addresses: dict[str, Any] = {}
        # The request that arrives, and the one that is answered: the same, or one of them is None.
        self._receiving: HttpExchange | None = None
        self._running: HttpExchange | None = None
        self._held = bytearray()
        self._is_read_paused = False
        self._is_closing = False  # whatever comes is discarded
        self._is_stopping = False  # the server is
        self._num_discarded = 0
        self._is_writable: asyncio.Event | None = None
        self._refusal: tuple[int, str] | None = None
        self._head, self._head_scan = RequestHead(), HeadScan()
        self._is_upgrade = False
        self._chunks = ChunkedBody()
        self._state = ""
        self._deadline = Deadline(self._loop)

    @property
    def default_headers(self) -> Headers:
        return self._server.default_headers

    # Called by the server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._server.connections.add(self)  # type: ignore[arg-type]  # it calls `shutdown` only

        def address(info: str) -> tuple[str, int] | None:
            name = transport.get_extra_info(info)
            return (str(name[0]), int(name[1])) if isinstance(name, tuple) else None

        self._addresses = {
            "client": address("peername"),
            "server": address("sockname"),
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
        }
        self._update_state()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self.transport = None
        self._is_closing = True
        self._deadline.cancel()
        self.resume_writing()
        if self._running is not None:
            self._running.disconnect()
        # End every cycle through this object, so that it is freed now and not by the collector.
        self._running = self._receiving = None
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
            self._deadline.set(self.limits.body_timeout_s, self.abort)

    def resume_writing(self) -> None:
        self.is_write_paused = False
        if self._is_writable is not None:
            self._is_writable.set()
        self._update_state()

    def shutdown(self) -> None:
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
        if self._refusal is not None:
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
            if running.has_started:
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
        view, position = memoryview(data), 0
        while position < len(data) and not self._is_closing:
            if self._running is not None and self._receiving is None:
                self._hold(data[position:])
                return
            end = self._find_end(data, position)
            if self._receiving is None:
                self._head_scan.add(data, position, end)
                if self._head_scan.num_bytes > (limit := self.limits.max_header_bytes):
                    text = f"the request head has more than {limit} bytes (proxy.max_header_bytes)"
                    self._refuse_request(431, text)
                    return
            self._parse(view[position:end])
            position = end

    def _find_end(self, data: bytes, position: int) -> int:
        if self._receiving is None:
            return self._head_scan.find_end(data, position)
        if self._head.content_length is not None:
            return position + self._head.content_length - self._receiving.num_bytes
        return self._chunks.find_end(data, position)

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
        if exchange is not None and self._head.content_length is None:
            if self._chunks.num_extra_bytes > self.limits.max_header_bytes:
                self._refusal = 431, "the chunked body's framing is too large"
            elif self._chunks.has_ended and self._receiving is not None:
                self._refusal = _UNCLEAR_END
        if self._refusal is not None:
            self._refuse_request(*self._refusal)

    def _parse_without_upgrade(self, rest: memoryview) -> None:
        """Parse a head again without its `upgrade`, for which the parser drops the body."""
        assert self._parser is not None, "data after the loss of the connection"
        method, version = self._parser.get_method(), self._parser.get_http_version()
        head = self._head.without_upgrade(method, version)
        self._parser = httptools.HttpRequestParser(self)
        self._is_upgrade = False
        self._parse(memoryview(head))
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
        if self._running is not None:
            self._refusal = _UNCLEAR_END
        self._head, self._is_upgrade = RequestHead(), False

    def on_url(self, url: bytes) -> None:
        self._head.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head.add(name, value)

    def on_headers_complete(self) -> None:
        head = self._head
        head.is_complete = True
        if self._refusal is not None or self._parser is None:
            return
        method, version = self._parser.get_method(), self._parser.get_http_version()
        self._refusal = head.problem(method, version) or self._head_scan.problem()
        self._is_upgrade = self._parser.should_upgrade()
        if self._refusal is not None or self._is_upgrade:
            return
        self._head_scan = HeadScan()
        self._chunks = ChunkedBody()
        scope = head.scope(method, version, root_path=self._root_path)
        self._receiving = exchange = HttpExchange(
            self,
            {**scope, "state": self._app_state.copy(), **self._addresses},
            limits=self.limits,
            budget=self.budget,
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            expects_continue=head.expects_continue and version != "1.0",
        )
        self._start(exchange)

    def on_body(self, data: bytes) -> None:
        if self._receiving is not None:
            self._receiving.feed(data)

    def on_message_complete(self) -> None:
        if self._receiving is not None:
            exchange, self._receiving = self._receiving, None
            exchange.finish_request()

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
        exchange.close()

    def _close(self, *, lingers: bool = False) -> None:
        """Close the connection when all is sent.

        With `lingers`, the client may still be sending. If its bytes met a closed socket, it would
        be reset and might not see the response: they are discarded for a while.
        """
        self._is_closing = True
        self._deadline.clear()
        self._held.clear()
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if lingers and not self._is_stopping and transport.can_write_eof():
            if self._is_read_paused:
                self._resume_reading()
            transport.write_eof()
            self._deadline.set(_LINGER_S, self._close)
        elif transport.get_write_buffer_size():
            transport.close()
            self._deadline.set(self.limits.body_timeout_s, self.abort)
        else:
            transport.close()

    def _update_state(self) -> None:
        if self._is_closing or self.is_write_paused:
            return
        limits = self.limits
        if self._running is None:
            is_idle = not self._head_scan.num_bytes and self._state in ("response", "idle")
            state = "idle" if is_idle else "head"
        else:
            state = "response" if self._receiving is None else "body"
        if state == self._state:
            return
        self._state = state
        self._deadline.clear()
        if state == "idle":
            self._deadline.set(limits.keep_alive_s, self._close)
        elif state != "response":
            seconds = limits.header_timeout_s if state == "head" else limits.body_timeout_s
            self._deadline.set(seconds, self._refuse_slow)

    def _refuse_slow(self) -> None:
        head, body = self.limits.header_timeout_s, self.limits.body_timeout_s
        seconds = head if self._state == "head" else body
        self._refuse_request(408, f"the request {self._state} took more than {seconds:g} s")


def http_connection(limits: ProxySettings) -> type[HttpConnection]:
    budget = BodyBudget(max(limits.max_total_body_bytes, limits.max_body_bytes))
    return type("HttpConnection", (HttpConnection,), {"limits": limits, "budget": budget})
