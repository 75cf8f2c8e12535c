"""HTTP/1.1 client of one upstream server: aiohttp's connector and response parser.

Sits below aiohttp's session, which would normalise targets, drop header bytes that are not UTF-8
and follow redirects: request heads are written as they are. Knows no retries and no backends.

NOTE: relies on internals of aiohttp's protocol: how it sets and drops its read timeout, and that
its parser reads the next response of a connection.
"""

import asyncio
import os
import select
import socket
from collections import deque
from functools import partial
from math import inf
from ssl import SSLError
from typing import NoReturn

from aiohttp import (
    ClientConnectorError,
    ClientError,
    ClientRequest,
    ClientTimeout,
    ServerDisconnectedError,
    StreamReader,
    TCPConnector,
    ThreadedResolver,
)
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import RawResponseMessage
from yarl import URL

from ragboost.errors import (
    BackendConnectionError,
    BackendError,
    BackendRefusedError,
    BackendTimeoutError,
    StaleConnectionError,
)

# Below the idle timeout of common servers (uvicorn: 5 s), so that the server rarely closes an idle
# connection first.
_KEEPALIVE_S = 3.0
_MAX_FIELD_BYTES = 64 * 1024  # of a header; aiohttp accepts at most 128 of them
_MAX_INTERIM_RESPONSES = 32
_BUFFER_BYTES = 64 * 1024  # reading is paused at twice as much
_FAILURES = (ClientError, HttpProcessingError, OSError, asyncio.TimeoutError)


class UpstreamResponse:
    """A response whose head has arrived and whose body is read in chunks."""

    __slots__ = ("_connection", "_payload", "_timeout_s", "headers", "status")

    def __init__(
        self,
        connection: Connection,
        message: RawResponseMessage,
        *,
        payload: StreamReader,
        timeout_s: float,
    ) -> None:
        self.status = message.code
        # Names in lower case, in the backend's order.
        self.headers = [(name.lower(), value) for name, value in message.raw_headers]
        self._connection = connection
        self._payload = payload
        self._timeout_s = timeout_s

    @property
    def is_complete(self) -> bool:
        """All of the body was read.

        NOTE: its end may have arrived while a `read` emptied the buffer, which aiohttp then fills
        with what it had not parsed yet: of a body in thousands of tiny chunks.
        """
        return self._payload.at_eof()

    async def read(self) -> bytes:
        """Wait for bytes of the body and return all that have arrived; empty at its end.

        A BackendConnectionError is a truncated body, a BackendTimeoutError a read timeout.
        """
        error = self._payload.exception()
        if error is not None:
            # NOTE: aiohttp would drop what came before the error.
            if data := self._payload._read_nowait(-1):
                return data
            self._raise(error)
        try:
            return await self._payload.readany()
        except _FAILURES as failure:
            self._raise(failure)

    def close(self) -> None:
        """Abandon the rest of the body, which closes the connection; no effect once it has come."""
        if not self._payload.is_eof():
            _abort(self._connection)

    def _raise(self, error: BaseException) -> NoReturn:
        _abort(self._connection)
        raise _failure(error, self._timeout_s) from None


class HttpClient:
    """Connections to one server, used on one event loop.

    Their number is unlimited: concurrency is limited where requests are scheduled.
    """

    def __init__(self, url: str, *, connect_timeout_s: float, read_timeout_s: float) -> None:
        self._url = url
        self._connect_timeout = ClientTimeout(connect=connect_timeout_s, ceil_threshold=inf)
        self._read_timeout_s = read_timeout_s
        self._server: ClientRequest | None = None  # the address, in aiohttp's form
        self._connector: TCPConnector | None = None
        # The pool, whose latest connection is used first: it is the likeliest to be open, and
        # aiohttp's own pool would keep as many open as were ever needed. With the time of release.
        self._idle: deque[tuple[Connection, float]] = deque()
        self._cleaning: asyncio.TimerHandle | None = None

    async def request(
        self, head: bytes, body: bytes, *, is_head_request: bool, is_pooled: bool = True
    ) -> UpstreamResponse:
        """Send a request, its head with the empty line, and wait for the head of its response.

        A BackendRefusedError says that nothing was sent, a StaleConnectionError that a used
        connection was closed before the response.

        Args:
            head: request line and headers.
            body: sent behind the head.
            is_head_request: the response has no body, whatever its head says.
            is_pooled: may use a connection again and leave it to others.
        """
        connection = await self._connect(is_pooled=is_pooled)
        protocol = connection.protocol
        assert isinstance(protocol, _Protocol)
        try:
            protocol.begin(is_head_request=is_head_request, timeout_s=self._read_timeout_s)
            protocol.send(head, body)
            message, payload = await _read_head(protocol)
        except BaseException as error:
            _abort(connection)
            if not isinstance(error, _FAILURES):
                raise
            raise _failure(error, self._read_timeout_s, is_reused=protocol.is_reused) from None
        payload.on_eof(partial(self._release, connection, protocol, is_pooled=is_pooled))
        timeout_s = self._read_timeout_s
        return UpstreamResponse(connection, message, payload=payload, timeout_s=timeout_s)

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop()[0].close()
        if self._cleaning is not None:
            self._cleaning.cancel()
        if self._connector is not None:
            await self._connector.close()

    async def _connect(self, *, is_pooled: bool) -> Connection:
        while is_pooled and self._idle:
            connection, _ = self._idle.pop()
            if _is_usable(connection):
                return connection
            _abort(connection)
        timeout = self._connect_timeout
        try:
            if self._server is None or self._connector is None:  # an event loop runs from now on
                self._server = ClientRequest("GET", URL(self._url).origin())
                self._connector = _connector()
            return await self._connector.connect(self._server, [], timeout)
        except TimeoutError:
            raise BackendTimeoutError(
                f"no connection to the backend in {timeout.connect:g} s"
            ) from None
        except (ClientError, ValueError) as error:
            reason = _refusal(error)
            raise BackendRefusedError(f"cannot connect to the backend: {reason}") from error

    def _release(self, connection: Connection, protocol: "_Protocol", *, is_pooled: bool) -> None:
        protocol.is_busy, protocol.is_reused = False, True
        if not is_pooled or protocol.should_close:
            connection.close()
            return
        self._idle.append((connection, asyncio.get_running_loop().time()))
        if self._cleaning is None:
            self._close_idle_later()

    def _close_idle_later(self) -> None:
        since = self._idle[0][1]
        loop = asyncio.get_running_loop()
        self._cleaning = loop.call_at(since + _KEEPALIVE_S, self._close_idle, since)

    def _close_idle(self, since: float) -> None:
        """Close the connections that were used last at this time or before."""
        self._cleaning = None
        while self._idle and self._idle[0][1] <= since:
            self._idle.popleft()[0].close()
        if self._idle:
            self._close_idle_later()


class _Protocol(ResponseHandler):
    """One connection, which closes when something comes that was not asked for."""

    is_reused = False  # an earlier request was answered on it
    is_busy = False
    _is_awaited = False  # bytes are, within the read timeout
    _last_read = 0.0

    def begin(self, *, is_head_request: bool, timeout_s: float) -> None:
        self.is_busy = True
        if self._parser is not None and not (is_head_request or self._skip_payload):
            return  # it reads the next response
        self.set_response_params(
            skip_payload=is_head_request,
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=timeout_s,
            read_bufsize=_BUFFER_BYTES,
            timeout_ceil_threshold=inf,
            max_line_size=_MAX_FIELD_BYTES,
            max_field_size=_MAX_FIELD_BYTES,
        )

    def send(self, head: bytes, body: bytes) -> None:
        if self.transport is None:
            raise ServerDisconnectedError
        if body:
            self.transport.writelines((head, body))
        else:
            self.transport.write(head)
        self.start_timeout()

    def data_received(self, data: bytes) -> None:
        if self.is_busy or not data:
            super().data_received(data)
        else:
            self.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._read_timeout_handle is not None:
            self._read_timeout_handle.cancel()

    # One timer for all the responses of a connection; aiohttp would set one per read.

    def _reschedule_timeout(self) -> None:
        self._is_awaited, self._last_read = True, self._loop.time()
        if self._read_timeout_handle is None and self._read_timeout:
            self._set_read_timer(self._read_timeout)

    def _drop_timeout(self) -> None:
        self._is_awaited = False

    def _set_read_timer(self, seconds: float) -> None:
        self._read_timeout_handle = self._loop.call_later(seconds, self._on_read_timeout)

    def _on_read_timeout(self) -> None:
        self._read_timeout_handle = None
        if not self._is_awaited:
            return
        left = self._last_read + (self._read_timeout or 0) - self._loop.time()
        if left > 0:
            self._set_read_timer(left)
        else:
            super()._on_read_timeout()

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        super().set_exception(exc, *cause)
        # NOTE: aiohttp leaves who reads a body with malformed chunks waiting.
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc, *cause)


def _connector() -> TCPConnector:
    connector = TCPConnector(
        limit=0, resolver=ThreadedResolver(), use_dns_cache=False, force_close=True
    )
    connector._factory = partial(_Protocol, asyncio.get_running_loop())  # type: ignore[assignment]
    return connector


async def _read_head(protocol: ResponseHandler) -> tuple[RawResponseMessage, StreamReader]:
    for _ in range(_MAX_INTERIM_RESPONSES):
        message, payload = await protocol.read()
        if message.code >= 200:
            return message, payload
        if message.code < 100 or message.code == 101:  # no upgrade was asked for
            break
        protocol.start_timeout()  # NOTE: aiohttp stops it at the end of an interim response
    raise HttpProcessingError(message=f"status {message.code}")


def _is_usable(connection: Connection) -> bool:
    """Return True if the server has neither closed the connection nor sent anything unasked.

    The socket is asked, as the event loop may not have seen its end yet.
    """
    protocol = connection.protocol
    if protocol is None or protocol.should_close or protocol.transport is None:
        return False
    poll = select.poll()
    poll.register(protocol.transport.get_extra_info("socket").fileno(), select.POLLIN)
    return not poll.poll(0)


def _abort(connection: Connection) -> None:
    if connection.transport is not None:
        connection.transport.abort()
    connection.close()


def _failure(error: BaseException, timeout_s: float, *, is_reused: bool = False) -> BackendError:
    if isinstance(error, asyncio.TimeoutError):
        return BackendTimeoutError(f"no response from the backend in {timeout_s:g} s")
    if isinstance(error, HttpProcessingError):
        problem = error.message.partition(":")[0]  # what follows quotes the response
        return BackendConnectionError(f"no response from the backend: invalid HTTP: {problem}")
    kind = StaleConnectionError if is_reused else BackendConnectionError
    return kind("no response from the backend: connection closed")


def _refusal(error: Exception) -> str:
    if isinstance(error, ClientConnectorError):
        return refusal_reason(error.os_error)
    cause = getattr(error, "certificate_error", None)
    return refusal_reason(cause) if isinstance(cause, OSError) else "it has no valid address"


def refusal_reason(error: OSError) -> str:
    """Return the reason in a few words."""
    if isinstance(error, socket.gaierror):
        return "no such host"
    if isinstance(error, SSLError):
        return f"TLS: {error.reason or 'no handshake'}"
    return os.strerror(error.errno).lower() if error.errno else "no address of it accepts one"
