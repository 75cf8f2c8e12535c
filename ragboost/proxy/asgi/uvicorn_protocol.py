"""Uvicorn's httptools protocol with limits on a request's head and a disconnect callback.

The only file that relies on uvicorn's internals; `tests/proxy/asgi/test_uvicorn_protocol.py` checks
it against the installed release, `scripts/check_packages.py` against the lowest supported one.

Of `HttpToolsProtocol`: `app`, `config.loaded_app`, `cycle`, `flow`, `headers`, `loop`, `scope`,
`transport`, `url`, and httptools' callbacks as methods. Of its request cycle: `body` (`receive`
returns it whole), `message_event`, `response_complete`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ragboost.config import ProxySettings
from ragboost.proxy.asgi.disconnect import EXTENSION
from ragboost.proxy.asgi.errors import error_body, error_response

_LINGER_S = 1.0
_REASONS = {408: b"Request Timeout", 431: b"Request Header Fields Too Large"}


class LimitedProtocol(HttpToolsProtocol):
    """Limit the bytes and the seconds of each request's head; httptools itself limits neither.

    Attributes:
        limits: `max_header_bytes` and `header_timeout_s`.
        too_large: ASGI app that responds to a request whose head is too large.
    """

    limits: ProxySettings
    too_large: Response

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_in_head = True
        self._is_refused = False
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._on_lost: Callable[[], None] | None = None
        self._is_lost = False

    def watch(self, on_lost: Callable[[], None] | None) -> None:
        """Set or remove the callback for a lost connection; see `disconnect.EXTENSION`."""
        self._on_lost = on_lost
        if on_lost is not None and self._is_lost:
            on_lost()
        elif on_lost is not None:
            self.flow.resume_reading()  # a paused transport does not report the end of the stream

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)
        self._is_lost = True
        if self._on_lost is not None:
            self._on_lost()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._is_in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._is_in_head and self._head_bytes > self.limits.max_header_bytes:
            self._refuse(431, _too_large(self.limits.max_header_bytes))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._body, self._body_bytes = [], 0
        self._is_in_head = True
        self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        self._is_in_head = False
        self._head_bytes = 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        # A head that arrives in one piece is parsed before `data_received` has compared its size.
        self.app = self.too_large if size > self.limits.max_header_bytes else self.config.loaded_app
        self.scope["extensions"] = {EXTENSION: {"watch": self.watch}}
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Collect the body up to its size limit.

        Passed on piece by piece, uvicorn would copy it several times and pause reading for each.
        """
        if self._body_bytes <= self.limits.max_body_bytes and not self.cycle.response_complete:
            self._body_bytes += len(body)
            self._body.append(body)
            return
        self._pass_body()
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._pass_body()
        super().on_message_complete()
        self._is_in_head = True

    def _pass_body(self) -> None:
        if self._body and not self.cycle.response_complete:
            body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self.cycle.body = body  # type: ignore[assignment]  # as `bytes`, it is not copied again
            self.cycle.message_event.set()
        self._body = []

    def _start_timer(self) -> None:
        if self._head_timer is None:
            message = f"the request head took more than {self.limits.header_timeout_s:g} s"
            self._head_timer = self.loop.call_later(
                self.limits.header_timeout_s, self._refuse, 408, message
            )

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse(self, status: int, message: str) -> None:
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # a pipelined head: the response before it is still being sent
            return
        body = error_body(status, message)
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\nconnection: close\r\n"
            b"content-length: %d\r\n\r\n%s" % (status, _REASONS[status], len(body), body)
        )
        # Closing at once would reset the connection of a client that is still sending, which then
        # would not see the response.
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)


def limited_protocol(settings: ProxySettings) -> type[LimitedProtocol]:
    """Make a protocol class with these limits, for `uvicorn.Config(http=...)`."""
    too_large = error_response(431, _too_large(settings.max_header_bytes))
    return type("LimitedProtocol", (LimitedProtocol,), {"limits": settings, "too_large": too_large})


def _too_large(limit: int) -> str:
    return f"the request head has more than {limit} bytes (proxy.max_header_bytes)"
