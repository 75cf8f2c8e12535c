"""Relay one answer from the backend to the client, as it comes.

Flow control is the sockets' own: while the client does not read, we do not read from the backend.
Knows nothing of what the bytes mean; taps look at them on the side.
"""

import logging
import time
from collections.abc import Sequence

from ragboost.cache_sync.usage import Usage
from ragboost.errors import BackendError, BackendTimeoutError
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.errors import error_body
from ragboost.proxy.asgi.headers import response_headers, with_header
from ragboost.proxy.asgi.request_context import REQUEST_ID, RequestContext
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.upstream.client import UpstreamResponse
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.rewriting.headers import RawHeaders, get_header

logger = logging.getLogger(__name__)

_EVENT_STREAM = "text/event-stream"


class Upstream:
    """A request for the backend, complete."""

    __slots__ = ("body", "extra_headers", "headers", "reader")

    def __init__(
        self,
        headers: RawHeaders,
        body: bytes,
        *,
        extra_headers: Sequence[tuple[bytes, bytes]] = (),
        reader: ResponseReader | None = None,
    ) -> None:
        self.headers = headers
        self.body = body
        self.extra_headers = extra_headers
        self.reader = reader


async def relay(
    exchange: RequestContext, watch: ClientWatch, turn: Admission, upstream: Upstream
) -> Usage | None:
    """Send a request to its backend and the answer to the client.

    Where the backend refuses the connection, others are tried. One that fails before its answer
    begins is an error of our own (502, 504). One that fails later cuts the answer: a stream of
    events gets an error event where one can stand, anything else ends short, so that the client
    sees that it is not whole.

    Returns:
        The usage that a complete response reports, or None.
    """
    response = await _request(exchange, watch, turn, upstream)
    if response is None:
        return None
    try:
        exchange.outcome = _outcome(response.status)
        reader = upstream.reader if _is_readable(response) else None
        await _send_head(exchange, turn, response, upstream, reader)
        is_whole = await _send_body(exchange, watch, turn, response, reader)
        return reader.usage if is_whole and reader is not None else None
    finally:
        response.close()  # no effect after the last byte; before it, this cancels the backend


async def _request(
    exchange: RequestContext, watch: ClientWatch, turn: Admission, upstream: Upstream
) -> UpstreamResponse | None:
    """Send the request; where no backend takes it, answer with an error and return None."""
    while True:
        try:
            return await turn.backend.request(
                exchange.method, exchange.target, headers=upstream.headers, body=upstream.body
            )
        except BackendError as error:
            logger.warning("%s %s: %s", exchange.method, exchange.scope["path"], error)
            if turn.fail_over(error):
                continue
            is_timeout = isinstance(error, BackendTimeoutError)
            exchange.outcome = "backend_timeout" if is_timeout else "backend_unreachable"
            watch.finish()
            await exchange.send_error(504 if is_timeout else 502, str(error))
            return None


async def _send_head(
    exchange: RequestContext,
    turn: Admission,
    response: UpstreamResponse,
    upstream: Upstream,
    reader: ResponseReader | None,
) -> None:
    headers = response_headers(response.headers)
    if reader is not None and reader.start(is_stream=_is_stream(response)):
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    if get_header(headers, REQUEST_ID) is None:
        headers.append((REQUEST_ID, exchange.request_id.encode("latin-1")))
    if upstream.extra_headers:
        headers.extend(upstream.extra_headers)
        headers.append((b"x-ragboost-backend", turn.backend.name.encode("latin-1", "replace")))
        headers.append((b"x-ragboost-cached-tokens-predicted", b"%d" % turn.ticket.cached_tokens))
    exchange.status = response.status
    await exchange.send(
        {"type": "http.response.start", "status": response.status, "headers": headers}
    )


async def _send_body(
    exchange: RequestContext,
    watch: ClientWatch,
    turn: Admission,
    response: UpstreamResponse,
    reader: ResponseReader | None,
) -> bool:
    last = b""
    send = exchange.send
    try:
        while chunk := await response.read():
            if exchange.first_byte is None:
                exchange.first_byte = time.perf_counter()
                turn.answered()
            last = reader.feed(chunk) if reader else chunk
            if response.is_complete:
                break
            if last:
                await send({"type": "http.response.body", "body": last, "more_body": True})
        else:
            last = b""  # all has been sent
    except BackendError as error:
        exchange.outcome = "truncated"
        logger.warning("%s: the backend's answer ended early: %s", exchange.scope["path"], error)
        if held := reader.take_held() if reader else b"":
            last = held
            await send({"type": "http.response.body", "body": held, "more_body": True})
        await _send_cut(exchange, watch, response, last)
        return False
    rest = last + (reader.finish() if reader else b"")
    watch.finish()
    await send({"type": "http.response.body", "body": rest, "more_body": False})
    return True


async def _send_cut(
    exchange: RequestContext, watch: ClientWatch, response: UpstreamResponse, last: bytes
) -> None:
    """End an answer that is not whole. Not sending the end makes the server cut the connection."""
    watch.finish()
    is_between_events = last.endswith((b"\n\n", b"\r\n\r\n")) or not last
    if _is_stream(response) and is_between_events:
        event = b"data: " + error_body(502, "the backend's answer ended early") + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": event, "more_body": False})


def _is_readable(response: UpstreamResponse) -> bool:
    encoding = get_header(response.headers, b"content-encoding") or "identity"
    return response.status == 200 and encoding == "identity"


def _is_stream(response: UpstreamResponse) -> bool:
    kind = get_header(response.headers, b"content-type") or ""
    return kind.partition(";")[0].strip().lower() == _EVENT_STREAM


def _outcome(status: int) -> str:
    if status < 400:
        return "ok"
    return "backend_4xx" if status < 500 else "backend_5xx"


def with_request_id(
    headers: list[tuple[bytes, bytes]], exchange: RequestContext
) -> list[tuple[bytes, bytes]]:
    """Add the request's id where the client gave none, and our span as the parent, if any."""
    if get_header(headers, REQUEST_ID) is None:
        headers.append((REQUEST_ID, exchange.request_id.encode("latin-1")))
    for name, value in exchange.trace_headers.items():
        headers = with_header(headers, name.lower().encode(), value.encode())
    return headers


def boost_headers(
    *, bypass: str | None, documents: int, dropped: int, seconds: float
) -> RawHeaders:
    """The `x-ragboost-*` headers of an answer."""
    headers = [
        (b"x-ragboost-documents", b"%d" % documents),
        (b"x-ragboost-documents-dropped", b"%d" % dropped),
        (b"x-ragboost-overhead-ms", b"%.3f" % (seconds * 1000)),
    ]
    if bypass is not None:
        headers.append((b"x-ragboost-bypass", bypass.encode()))
    return headers
