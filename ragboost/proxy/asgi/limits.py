"""Read a request's body within limits of size and time."""

import asyncio

from starlette.types import Receive

from ragboost.config import ProxySettings
from ragboost.errors import RequestError


class BodyTooLargeError(RequestError):
    """The body is larger than `proxy.max_body_bytes`."""

    status = 413


class BodyTimeoutError(RequestError):
    """The body did not arrive within `proxy.body_timeout_s`."""

    status = 408


class ClientDisconnectedError(Exception):
    """The client disconnected while it was sending; there is nobody to respond to."""


async def read_body(receive: Receive, *, declared: str | None, settings: ProxySettings) -> bytes:
    """Receive a whole request body.

    Args:
        receive: the ASGI channel of the request.
        declared: the `content-length` header, which may be absent or wrong.
        settings: the limits.

    Raises:
        BodyTooLargeError: more than `max_body_bytes` are declared or have been received.
        BodyTimeoutError: the body is not complete after `body_timeout_s`.
        ClientDisconnectedError: the client disconnected before the end.
    """
    limit = settings.max_body_bytes
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await _receive_all(receive, limit)
    except TimeoutError:
        raise BodyTimeoutError(
            f"the request body did not arrive within {settings.body_timeout_s:g} s "
            "(proxy.body_timeout_s)"
        ) from None


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
