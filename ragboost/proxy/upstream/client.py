"""HTTP/1.1 client for one upstream server: a pool of connections, one request at a time on each."""

import asyncio
import fcntl
import select
import socket
import sys
import termios
from collections import deque
from ssl import SSLContext, create_default_context
from urllib.parse import urlsplit

import httptools

from ragboost.errors import (
    BackendConnectionError,
    BackendRefusedError,
    BackendTimeoutError,
    StaleConnectionError,
    UnreadRequestError,
)
from ragboost.proxy.upstream.refusal_reason import refusal_reason

# Below the idle timeout of common servers (uvicorn: 5 s), so that the server rarely closes an idle
# connection first.
_KEEPALIVE_S = 3.0
_MAX_HEAD_BYTES = 256 * 1024
_HIGH_WATER_BYTES = 128 * 1024
_STATUSES_WITHOUT_BODY = (204, 304)


class UpstreamResponse:
    """A response whose head has arrived and whose body is read in chunks."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_error",
        "_size",
        "_waiter",
        "headers",
        "is_complete",
        "status",
    )

    def __init__(
        self, connection: "Connection", status: int, headers: list[tuple[bytes, bytes]]
    ) -> None:
        self.status = status
        self.headers = headers  # names in lower case, in the backend's order
        # The end of the body has arrived; the next `read` returns all that remains.
        self.is_complete = False
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: BackendConnectionError | BackendTimeoutError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """Wait for bytes of the body and return all that have arrived; empty at its end.

        A BackendConnectionError is a truncated body, a BackendTimeoutError a read timeout.
        """
        if not (self._chunks or self.is_complete or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        chunks = self._chunks
        if not chunks and self._error is not None:
            # A copy: the traceback refers to frames that refer to this response.
            raise type(self._error)(*self._error.args)
        if self._size > _HIGH_WATER_BYTES:
            self._connection.resume()
        self._chunks, self._size = [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Abandon the rest of the body, which closes the connection; no effect if complete."""
        if not self.is_complete:
            self._connection.close()

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER_BYTES:
            self._connection.pause()
        self._wake()

    def finish(self, error: BackendConnectionError | BackendTimeoutError | None = None) -> None:
        self.is_complete, self._error = error is None, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One connection of a pool; httptools calls its `on_` methods."""

    def __init__(self, pool: "ConnectionPool", loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None  # while connected
        self._waiter: asyncio.Future[UpstreamResponse] | None = None
        self.idle_since = 0.0  # while the pool has it
        self._response: UpstreamResponse | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._head_bytes = 0
        self._poll = select.poll()
        self._is_head_request = self._is_paused = False
        self._ends_at_close = self._has_ended = False
        self._num_bytes = 0  # of the request
        self._is_unread = False
        self.is_reused = False  # an earlier request was answered on it

    @property
    def is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def is_usable(self) -> bool:
        """The idle connection may carry a request: the server has neither closed it nor sent more.

        The socket is asked, as the event loop may not have seen its end yet.
        """
        return not self.is_closing and not self._poll.poll(0)

    async def exchange(
        self, head: bytes, body: bytes, *, is_head_request: bool
    ) -> UpstreamResponse:
        """Send a request, its head with the empty line, and wait for the head of its response.

        A reused connection that was closed before the request arrived, or before the response
        began, is an UnreadRequestError or a StaleConnectionError.
        """
        assert self._transport is not None, "not connected"
        self._is_head_request, self._has_ended = is_head_request, False
        self._head_bytes, self._ends_at_close = 0, False
        self._headers, self._response = [], None
        self._num_bytes = len(head) + len(body)
        waiter: asyncio.Future[UpstreamResponse] = self._loop.create_future()
        self._waiter = waiter
        self._last_read = self._loop.time()
        if self._timer is None:  # else that of an earlier request waits on, as long as is left
            self._timer = self._loop.call_later(self._pool.read_timeout_s, self._check_timeout)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiter is waiter:  # else all has arrived, and the connection may be another's
                self._waiter = None
                self.close()
            raise
        finally:
            del waiter  # its error's traceback refers to this frame

    def close(self) -> None:
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Stop reading from the socket: the response's buffer is full."""
        if not (self._is_paused or self.is_closing):
            self._is_paused = True
            self._transport.pause_reading()  # type: ignore[union-attr]

    def resume(self) -> None:
        if self._is_paused and not self.is_closing:
            self._is_paused = False
            self._last_read = self._loop.time()
            self._transport.resume_reading()  # type: ignore[union-attr]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is not a subclass
        self._parser = httptools.HttpResponseParser(self)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None, "data after the loss of the connection"
        self._last_read = self._loop.time()
        if self._response is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"invalid HTTP response: {error}")
            return
        if self._response is None and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(f"the response's head has more than {_MAX_HEAD_BYTES} bytes")
        elif self._has_ended:
            self._release()

    def eof_received(self) -> None:
        self._is_unread = self._has_nothing_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._transport = None
        if self._ends_at_close and exc is None and self._response is not None:
            self._end()
        else:
            self._fail(f"connection closed{f': {exc}' if exc else ''}")
        # End every cycle through this object, so that it is freed now and not by the collector.
        self._waiter = self._response = None
        self._parser = None

    def on_message_begin(self) -> None:
        if self._waiter is None or self._has_ended:
            self._fail("unsolicited response")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._response is None:  # else it is a trailer, which is dropped
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        assert self._parser is not None, "data after the loss of the connection"
        status = self._parser.get_status_code()
        if status < 100:
            self._fail(f"invalid HTTP response: status {status}")
            return
        if status < 200:  # interim responses: 100 Continue, 103 Early Hints
            self._headers = []
            return
        names = {name for name, _ in self._headers}
        has_length = b"content-length" in names or b"transfer-encoding" in names
        self._ends_at_close = not (has_length or status in _STATUSES_WITHOUT_BODY)
        self._response = UpstreamResponse(self, status, self._headers)
        if self._is_head_request:  # the parser would wait for a body
            self._ends_at_close = True
            self._end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._response)

    def on_body(self, data: bytes) -> None:
        if self._response is not None and not self._has_ended:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        if self._response is not None:
            assert self._parser is not None, "data after the loss of the connection"
            self._ends_at_close = self._ends_at_close or not self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        if not self._has_ended and self._response is not None:
            self._has_ended = True
            self._response.finish()

    def _release(self) -> None:
        self._waiter = self._response = None
        self._headers = []
        self.resume()
        if self._ends_at_close or self.is_closing:
            self.close()
        else:
            self.is_reused = True
            self._pool.put(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_timeout(self) -> None:
        self._timer = None
        if self._waiter is None:  # idle
            return
        now, timeout = self._loop.time(), self._pool.read_timeout_s
        if self._is_paused:  # the proxy is not reading
            self._last_read = now
        due = self._last_read + timeout
        if due > now:
            self._timer = self._loop.call_at(due, self._check_timeout)
        else:
            self._stop(BackendTimeoutError(f"no response from the backend in {timeout:g} s"))

    def _has_nothing_arrived(self) -> bool:
        """Return True if the server has closed the connection before any byte of the request came.

        The FIN of a server acknowledges all that had come before. A reset does not.
        """
        transport = self._transport
        if transport is None or sys.platform != "linux" or self._pool.is_tls:
            return False
        num_sent = self._num_bytes - transport.get_write_buffer_size()
        fd = transport.get_extra_info("socket").fileno()
        unacknowledged = fcntl.ioctl(fd, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(unacknowledged, sys.byteorder) >= num_sent > 0

    def _fail(self, problem: str) -> None:
        message = f"no response from the backend: {problem}"
        kind = BackendConnectionError
        if self.is_reused and not self._head_bytes:
            kind = UnreadRequestError if self._is_unread else StaleConnectionError
        self._stop(kind(message))

    def _stop(self, error: BackendConnectionError | BackendTimeoutError) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
            self._waiter = None  # its error's traceback refers to this connection
        elif self._response is not None and not self._has_ended:
            self._has_ended = True
            self._response.finish(error)


class ConnectionPool:
    """A pool of connections to one server, used on one event loop.

    Their number is unlimited: concurrency is limited where requests are scheduled.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self.is_tls = parts.scheme == "https"
        self._tls: SSLContext | None = None
        self._idle: deque[Connection] = deque()  # oldest first
        self._sweeper: asyncio.TimerHandle | None = None

    async def connect(self) -> Connection:
        """Open a new connection; a BackendRefusedError says that none could be made."""
        loop = asyncio.get_running_loop()
        if self.is_tls and self._tls is None:
            self._tls = create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._connect(loop)
        except TimeoutError:
            raise BackendTimeoutError(
                f"no connection to the backend in {self._connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            reason = refusal_reason(error)
            raise BackendRefusedError(f"cannot connect to the backend: {reason}") from error

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> Connection:
        """Connect to the first address that accepts.

        `create_connection` with a name would, if cancelled, leave its look-up's error to the log.
        """
        name = self._host if self.is_tls else None
        found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = [self._host] if "%" in self._host else [str(each[4][0]) for each in found]
        for address in addresses:
            try:
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop),
                    address,
                    self._port,
                    ssl=self._tls,
                    server_hostname=name,
                )
            except OSError:
                if address == addresses[-1]:
                    raise
            else:
                return connection
        raise OSError("the name has no address")

    def take(self) -> Connection | None:
        limit = asyncio.get_running_loop().time() - _KEEPALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since > limit and connection.is_usable:
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.idle_since = loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(_KEEPALIVE_S, self._sweep)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.pop().close()

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since <= loop.time() - _KEEPALIVE_S:
            self._idle.popleft().close()
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].idle_since + _KEEPALIVE_S, self._sweep)
