"""Read a client's body within limits of size and time, and cancel its request when it leaves."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from starlette.types import Receive, Scope

from ragboost.config import ProxySettings
from ragboost.errors import RequestError
from ragboost.serving.exchange import CONNECTION_EXTENSION


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
        declared: the `content-length` header, which may be absent or wrong.

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


class ClientWatch:
    """Cancel the current task when the client disconnects, and absorb that cancellation.

        async with ClientWatch(scope, receive) as watch:
            ...                       # cancelled when the client disconnects
            watch.finish()            # before the last byte is sent
        if watch.has_left: ...

    The proxy's own server reports a lost connection by a callback. On any other server a task reads
    the ASGI channel; the request's body must have been received by then.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.has_left = False  # the client disconnected before `finish`
        connection = scope.get("extensions", {}).get(CONNECTION_EXTENSION, {})
        self._watch_connection: Callable[[Callable[[], None] | None], None] | None
        self._watch_connection = connection.get("watch")
        self._receive = receive
        self._is_finished = False
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        if self._watch_connection is not None:
            self._watch_connection(self._cancel)
        else:
            self._reader = asyncio.create_task(self._read_until_disconnect())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        self._is_finished = True
        if self._watch_connection is not None:
            self._watch_connection(None)
        if self._reader is not None:
            self._reader.cancel()
        if not self.has_left:
            return False
        # A count remains if something else cancelled the task too, such as the server's shutdown.
        return self._task.uncancel() == 0 and kind is asyncio.CancelledError

    def finish(self) -> None:
        """Stop watching: servers report a disconnect after a complete response, too."""
        self._is_finished = True

    async def _read_until_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel()

    def _cancel(self) -> None:
        if not self._is_finished:
            self.has_left = True
            self._task.cancel()
