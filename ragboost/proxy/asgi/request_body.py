"""Receive a client's request body, as it came or as text that the proxy reads."""

import asyncio
import json
import math
import re
from collections.abc import Sequence

from starlette.types import Receive, Scope

from ragboost.config import ProxySettings
from ragboost.errors import RequestError, ServerBusyError
from ragboost.proxy.asgi.client_exchange import ClientExchange, connection_of
from ragboost.proxy.asgi.content_coding import ENCODING, BodyTooLargeError, codings_of, decode
from ragboost.rewriting.headers import get_header, with_header
from ragboost.rewriting.parsed_request import run_bytes

_CONTENT_TYPE = b"content-type"
_OBJECT_START = re.compile(rb'\s*\{\s*["}]')


class BodyTimeoutError(RequestError):
    status = 408


class ClientDisconnectedError(Exception):
    """The client disconnected while it was sending; there is nobody to respond to."""


async def read_body(scope: Scope, receive: Receive, *, settings: ProxySettings) -> bytes:
    """Receive a whole request body.

    The declared length may be absent or wrong. Raises BodyTooLargeError, BodyTimeoutError, or
    ClientDisconnectedError.
    """
    limit, seconds = settings.max_body_bytes, settings.body_timeout_s
    declared = get_header(scope["headers"], b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    if connection_of(scope).get("body_timeout_s", math.inf) <= seconds:
        return await _receive_all(receive, limit)  # the server ends slower ones
    try:
        async with asyncio.timeout(seconds):
            return await _receive_all(receive, limit)
    except TimeoutError:
        raise BodyTimeoutError(
            f"the request body did not arrive within {seconds:g} s (proxy.body_timeout_s)"
        ) from None


async def read_text(exchange: ClientExchange, *, settings: ProxySettings) -> bytes:
    """Receive a whole request body that the proxy reads: JSON.

    Returns:
        The body in UTF-8, without content codings and byte order mark; the exchange's headers then
        say so. Bytes that are not in the encoding that they seem to be in are returned as they are.

    Raises:
        UnsupportedCodingError: in a coding that the proxy cannot decode.
        RequestError: not in the coding that its header names, and what `read_body` raises.
    """
    raw = await read_body(exchange.scope, exchange.receive, settings=settings)
    headers, limit = exchange.headers, settings.max_body_bytes
    body = raw
    if any(name == ENCODING for name, _ in headers):
        if codings := codings_of(headers):
            body = await asyncio.to_thread(_decode, raw, codings, max_bytes=limit)
        exchange.headers = [header for header in headers if header[0] != ENCODING]
    if _may_be_other(body):
        text = await run_bytes(lambda: as_utf8(body), len(body))
        if text is not body and b"charset" in (get_header(headers, _CONTENT_TYPE) or "").encode():
            exchange.headers = with_header(exchange.headers, _CONTENT_TYPE, b"application/json")
        body = text
    if len(body) > limit:
        raise _too_large(len(body), limit)
    if body is not raw:
        _count(exchange, len(body) - len(raw), settings)
    return body


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
    """Decode a JSON text as Python's `json`, and so FastAPI, does; lone surrogates are escaped."""
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except UnicodeDecodeError:
        return body
    return text.encode("utf-8", "backslashreplace") or body


def _count(exchange: ClientExchange, num_bytes: int, settings: ProxySettings) -> None:
    """Count the bytes that a body has gained among those of all requests."""
    take = connection_of(exchange.scope).get("take")
    if num_bytes > 0 and take is not None and not take(num_bytes):
        raise ServerBusyError(
            f"the bodies of all requests have more than {settings.max_total_body_bytes} bytes "
            "(proxy.max_total_body_bytes); retry"
        )


async def _receive_all(receive: Receive, limit: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        chunk: bytes = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(size, limit)
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks) if len(chunks) > 1 else chunk


def _too_large(size: int, limit: int) -> BodyTooLargeError:
    return BodyTooLargeError(
        f"the request body has at least {size} bytes; the limit is {limit} (proxy.max_body_bytes)"
    )
