"""HTTP/1.1 connections to one upstream server: a pool of idle ones, one request at a time on each.

A connection writes bytes that are complete and reads one answer, with flow control and a timeout.
Knows framing. Does not know what a request means, nor whether it may be sent again.
"""

import asyncio
from collections import deque
from ssl import SSLContext, create_default_context
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from ragboost.errors import BackendConnectionError, BackendTimeoutError

# Below the idle timeout of every server we know (uvicorn: 5 s), so that an idle connection is
# rarely closed under us.
_KEEPALIVE_S = 3.0
_MAX_HEAD_BYTES = 256 * 1024
_HIGH_WATER_BYTES = 128 * 1024
_NO_BODY = (204, 304)


class BackendRefusedError(BackendConnectionError):
    """No connection at all: the backend cannot have begun, so another one may be tried."""


class StaleConnectionError(BackendConnectionError):
    """A connection that had been idle was closed before anything of an answer came."""


class Response:
    """An answer whose head has arrived; the connection fills in the body.

    Attributes:
        status: the status code.
        headers: names in lower case, in the order in which they came.
        is_complete: nothing more will come behind what the next `read` returns.
    """

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
        self.headers = headers
        self.is_complete = False
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._error: BackendConnectionError | BackendTimeoutError | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def read(self) -> bytes:
        """Wait for bytes of the body and return all that have come; empty: it is over.

        Raises:
            BackendConnectionError: it ended early.
            BackendTimeoutError: nothing came for too long.
        """
        if not (self._chunks or self.is_complete or self._error):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        chunks = self._chunks
        if not chunks and self._error is not None:
            raise self._error
        if self._size > _HIGH_WATER_BYTES:
            self._connection.resume()
        self._chunks, self._size = [], 0
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        """Nobody wants the rest: of no effect on a whole answer, else the backend is cut off."""
        if not self.is_complete:
            self._connection.close()

    def feed(self, data: bytes) -> None:
        """Take bytes of the body."""
        self._chunks.append(data)
        self._size += len(data)
        if self._size > _HIGH_WATER_BYTES:
            self._connection.pause()
        self._wake()

    def finish(self, error: BackendConnectionError | BackendTimeoutError | None = None) -> None:
        """The body is over, or will not come."""
        self.is_complete, self._error = error is None, error
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """One connection, made by `Connections.connect`; see the module."""

    def __init__(self, pool: "Connections", loop: asyncio.AbstractEventLoop) -> None:
        self._pool = pool
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Response] | None = None
        self._response: Response | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._head_bytes = 0
        self._is_head_request = self._is_paused = False
        self._ends_at_close = self._is_over = False
        self.is_reused = False

    @property
    def is_closing(self) -> bool:
        """It cannot be used any more."""
        return self._transport is None or self._transport.is_closing()

    async def exchange(self, head: bytes, body: bytes, *, is_head_request: bool) -> Response:
        """Send a request and wait for the head of its answer.

        Raises:
            StaleConnectionError: it was closed meanwhile, and had been used before.
            BackendConnectionError: it broke, or what came is no HTTP.
            BackendTimeoutError: nothing came in time.
        """
        assert self._transport is not None, "not connected"
        self._is_head_request, self._is_over = is_head_request, False
        self._head_bytes, self._ends_at_close = 0, False
        self._headers, self._response = [], None
        self._waiter = self._loop.create_future()
        self._last_read = self._loop.time()
        self._timer = self._loop.call_later(self._pool.read_timeout_s, self._look)
        if body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        try:
            return await self._waiter
        except asyncio.CancelledError:
            self.close()
            raise

    def close(self) -> None:
        """Cut the connection."""
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Nobody reads the answer at the moment."""
        if not (self._is_paused or self.is_closing):
            self._is_paused = True
            self._transport.pause_reading()  # type: ignore[union-attr]

    def resume(self) -> None:
        """Somebody reads it again."""
        if self._is_paused and not self.is_closing:
            self._is_paused = False
            self._last_read = self._loop.time()
            self._transport.resume_reading()  # type: ignore[union-attr]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The event loop has connected."""
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        self._last_read = self._loop.time()
        if self._response is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"what came is no HTTP: {error}")
            return
        if self._response is None and self._head_bytes > _MAX_HEAD_BYTES:
            self._fail(f"the head of its answer has more than {_MAX_HEAD_BYTES} bytes")
        elif self._is_over:
            self._release()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other side, or we, have closed."""
        self._transport = None
        if self._ends_at_close and exc is None and self._response is not None:
            self._end()
        else:
            self._fail(f"it closed the connection{f': {exc}' if exc else ''}")

    def on_message_begin(self) -> None:
        """Something comes."""
        if self._waiter is None or self._is_over:
            self._fail("it sent what nobody has asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete; also one behind a chunked body, which goes no further."""
        if self._response is None:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        if status < 200:  # "continue" and "early hints" come before the answer
            self._headers = []
            return
        names = {name for name, _ in self._headers}
        has_length = b"content-length" in names or b"transfer-encoding" in names
        self._ends_at_close = not (has_length or status in _NO_BODY)
        self._response = Response(self, status, self._headers)
        if self._is_head_request:  # the parser would wait for a body
            self._ends_at_close = True
            self._end()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(self._response)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._response is not None and not self._is_over:
            self._response.feed(data)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._response is not None:
            self._ends_at_close = self._ends_at_close or not self._parser.should_keep_alive()
            self._end()

    def _end(self) -> None:
        if not self._is_over and self._response is not None:
            self._is_over = True
            self._response.finish()
            if self._timer is not None:
                self._timer.cancel()

    def _release(self) -> None:
        """The answer is whole, and nothing came behind it."""
        self._waiter = None
        self.resume()
        if self._ends_at_close or self.is_closing:
            self.close()
        else:
            self.is_reused = True
            self._pool.put(self)

    def _look(self) -> None:
        """Tell whether nothing has come for too long."""
        now, timeout = self._loop.time(), self._pool.read_timeout_s
        if self._is_paused:  # it is us who do not read
            self._last_read = now
        due = self._last_read + timeout
        if due > now:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._stop(BackendTimeoutError(f"{self._pool.name} did not answer in {timeout:g} s"))

    def _fail(self, problem: str) -> None:
        message = f"no answer from {self._pool.name}: {problem}"
        is_stale = self.is_reused and not self._head_bytes
        self._stop((StaleConnectionError if is_stale else BackendConnectionError)(message))

    def _stop(self, error: BackendConnectionError | BackendTimeoutError) -> None:
        self.close()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)
        elif self._response is not None and not self._is_over:
            self._is_over = True
            self._response.finish(error)


class _Idle(NamedTuple):
    since: float
    connection: Connection


class Connections:
    """The connections to one server. Belongs to one event loop, from `connect` to `close`.

    There is no limit to their number: whoever sends requests has one.

    Args:
        url: scheme, host and port; the rest does not count.
        connect_timeout_s: for a new connection, with TLS.
        read_timeout_s: between two pieces of an answer, and before the first.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        parts = urlsplit(url)
        self.name = f"the backend at {url}"
        self.read_timeout_s = read_timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._host = parts.hostname or ""
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._is_tls = parts.scheme == "https"
        self._tls: SSLContext | None = None
        self._idle: deque[_Idle] = deque()  # oldest first
        self._sweeper: asyncio.TimerHandle | None = None

    async def connect(self) -> Connection:
        """Open a new connection.

        Raises:
            BackendRefusedError: there is none.
            BackendTimeoutError: not in time.
        """
        loop = asyncio.get_running_loop()
        if self._is_tls and self._tls is None:
            self._tls = create_default_context()
            self._tls.set_alpn_protocols(["http/1.1"])
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self, loop), self._host, self._port, ssl=self._tls
                )
        except TimeoutError:
            raise BackendTimeoutError(
                f"no connection to {self.name} in {self._connect_timeout_s:g} s"
            ) from None
        except OSError as error:
            raise BackendRefusedError(f"no answer from {self.name}: {error}") from error
        return connection

    def take(self) -> Connection | None:
        """The idle connection that was used last; None: there is none."""
        limit = asyncio.get_running_loop().time() - _KEEPALIVE_S
        while self._idle:
            since, connection = self._idle.pop()
            if since > limit and not connection.is_closing:
                return connection
            connection.close()
        return None

    def put(self, connection: Connection) -> None:
        """An answer is over: the connection is idle."""
        loop = asyncio.get_running_loop()
        self._idle.append(_Idle(loop.time(), connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(_KEEPALIVE_S, self._sweep)

    def close(self) -> None:
        """Close the idle ones; those in use close when they are done."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.pop().connection.close()

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].since <= loop.time() - _KEEPALIVE_S:
            self._idle.popleft().connection.close()
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].since + _KEEPALIVE_S, self._sweep)
