"""Receive a client's request body, as it came or as text that the proxy reads."""

import asyncio
import json
import re
from collections.abc import Sequence

from ragboost.config import ProxySettings
from ragboost.errors import RequestError, ServerBusyError
from ragboost.proxy.asgi.client_exchange import ClientExchange
from ragboost.proxy.asgi.content_coding import ENCODING, BodyTooLargeError, codings_of, decode
from ragboost.requests.headers import get_header, with_header
from ragboost.requests.parsed_request import run_bytes

_TYPE = b"content-type"
_OBJECT_START = re.compile(rb'\s*\{\s*["}]')


class BodyTimeoutError(RequestError):
    status = 408


class ClientDisconnectedError(Exception):
    """The client disconnected while it was sending; there is nobody to respond to."""


class RequestBodies:
    """Receive the bodies of requests, bounded in size and time, and in bytes of all that run.

    A body counts until its exchange is released. What does not fit is refused and does not wait:
    bodies that waited for each other, each with a part of the bytes, would wait for ever.
    """

    def __init__(self, settings: ProxySettings) -> None:
        self._max_bytes, self._seconds = settings.max_body_bytes, settings.body_timeout_s
        self._max_total_bytes = max(settings.memory.bodies, settings.max_body_bytes)
        self.num_bytes = 0

    async def read(self, exchange: ClientExchange) -> bytes:
        """Receive a whole request body.

        The declared length may be absent or wrong. Raises BodyTooLargeError, BodyTimeoutError,
        ServerBusyError, or ClientDisconnectedError.
        """
        declared = get_header(exchange.headers, b"content-length")
        if declared is not None and declared.isdigit():
            self._check_size(int(declared))
        if exchange.guard is not None:
            return await self._receive_all(exchange)
        try:
            async with asyncio.timeout(self._seconds):
                return await self._receive_all(exchange)
        except TimeoutError:
            raise BodyTimeoutError(
                f"the request body did not arrive within {self._seconds:g} s (proxy.body_timeout_s)"
            ) from None

    async def read_text(self, exchange: ClientExchange) -> bytes:
        """Receive a whole request body that the proxy reads: JSON.

        Returns:
            The body in UTF-8, without content codings and byte order mark; the exchange's headers
            then say so. Bytes that are not in the encoding that they seem to be in are returned as
            they are.

        Raises:
            UnsupportedCodingError: in a coding that the proxy cannot decode.
            RequestError: not in the coding that its header names, and what `read` raises.
        """
        raw = body = await self.read(exchange)
        headers, limit = exchange.headers, self._max_bytes
        if get_header(headers, ENCODING) is not None:
            if codings := codings_of(headers):
                body = await asyncio.to_thread(_decode, raw, codings, max_bytes=limit)
            exchange.headers = [header for header in headers if header[0] != ENCODING]
        if _may_be_other(body):
            text = await run_bytes(lambda: as_utf8(body), len(body))
            if text is not body and b"charset" in (get_header(headers, _TYPE) or "").encode():
                exchange.headers = with_header(exchange.headers, _TYPE, b"application/json")
            body = text
        if body is not raw:
            self._check_size(len(body))
            self._count(exchange, max(0, len(body) - len(raw)))
        return body

    def release(self, exchange: ClientExchange) -> None:
        self.num_bytes -= exchange.counted_bytes
        exchange.counted_bytes = 0

    async def _receive_all(self, exchange: ClientExchange) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await exchange.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnectedError
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            self._check_size(size)
            self._count(exchange, len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                return b"".join(chunks) if len(chunks) > 1 else chunk

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise BodyTooLargeError(
                f"the request body has at least {size} bytes; the limit is {self._max_bytes} "
                "(proxy.max_body_bytes)"
            )

    def _count(self, exchange: ClientExchange, size: int) -> None:
        if self.num_bytes + size > self._max_total_bytes:
            raise ServerBusyError(
                f"the bodies of all requests have more than {self._max_total_bytes} bytes "
                "(a part of proxy.memory_bytes); retry"
            )
        self.num_bytes += size
        exchange.counted_bytes += size


def _decode(body: bytes, codings: Sequence[str], *, max_bytes: int) -> bytes:
    """Decode a body; one that is JSON as it is stays so, whatever its header says: engines do not
    read that, and some clients write `utf-8` into it."""
    try:
        return decode(body, codings, max_bytes=max_bytes)
    except BodyTooLargeError:
        raise
    except RequestError:
        if _OBJECT_START.match(body):
            return body
        raise


def _may_be_other(body: bytes) -> bool:
    """Return True if a JSON text may be in UTF-16 or UTF-32, or begins with a byte order mark."""
    head = body[:4]
    return bool(head) and (head[0] > 0x7F or 0 in head)


def as_utf8(body: bytes) -> bytes:
    """Decode a JSON text as Python's `json` does; lone surrogates are escaped."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError:
        return body
    return text.encode("utf-8", "backslashreplace") or body
