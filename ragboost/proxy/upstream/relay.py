"""Relay one answer from the backend to the client, as it comes.

Flow control is the sockets' own: while the client does not read, we do not read from the backend.
Knows nothing of what the bytes mean; taps look at them on the side.
"""

import logging
import time
from collections.abc import Sequence

from ragboost.errors import BackendError, BackendTimeoutError
from ragboost.proxy.asgi.disconnect import ClientWatch
from ragboost.proxy.asgi.errors import error_body
from ragboost.proxy.asgi.headers import response_headers, with_header
from ragboost.proxy.asgi.request_context import REQUEST_ID, RequestContext
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.upstream.answers import AnswerReader, ReadingTap
from ragboost.proxy.upstream.client import Response
from ragboost.proxy.upstream.usage_taps import JsonTap, StreamTap, StrippingTap, Tap
from ragboost.rewriting.headers import RawHeaders, get_header

logger = logging.getLogger(__name__)

_EVENT_STREAM = "text/event-stream"


class Upstream:
    """A request for the backend, complete."""

    __slots__ = ("body", "extra_headers", "headers", "is_usage_added", "reader", "wants_usage")

    def __init__(
        self,
        headers: RawHeaders,
        body: bytes,
        *,
        extra_headers: Sequence[tuple[bytes, bytes]] = (),
        wants_usage: bool = False,
        is_usage_added: bool = False,
        reader: AnswerReader | None = None,
    ) -> None:
        self.headers = headers
        self.body = body
        self.extra_headers = extra_headers
        self.wants_usage = wants_usage
        self.is_usage_added = is_usage_added
        self.reader = reader


async def relay(
    exchange: RequestContext, watch: ClientWatch, turn: Admission, upstream: Upstream
) -> Tap | None:
    """Send a request to its backend and the answer to the client.

    Where the backend refuses the connection, others are tried. One that fails before its answer
    begins is an error of our own (502, 504). One that fails later cuts the answer: a stream of
    events gets an error event where one can stand, anything else ends short, so that the client
    sees that it is not whole.

    Returns:
        What looked at the answer, finished; None if nobody did or it is not whole.
    """
    response = await _request(exchange, watch, turn, upstream)
    if response is None:
        return None
    try:
        exchange.outcome = _outcome(response.status)
        tap = _tap(response, upstream)
        await _send_head(exchange, turn, response, upstream, tap)
        tap = await _send_body(exchange, watch, turn, response, tap)
        if tap is not None and upstream.reader is not None:
            upstream.reader.finish()
        return tap
    finally:
        response.close()  # of no effect after the last byte; before it, this cancels the backend


async def _request(
    exchange: RequestContext, watch: ClientWatch, turn: Admission, upstream: Upstream
) -> Response | None:
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
    response: Response,
    upstream: Upstream,
    tap: Tap | None,
) -> None:
    headers = response_headers(response.headers)
    if tap is not None and tap.changes_length:
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
    response: Response,
    tap: Tap | None,
) -> Tap | None:
    last = b""
    send = exchange.send
    try:
        while chunk := await response.read():
            if exchange.first_byte is None:
                exchange.first_byte = time.perf_counter()
                turn.answered()
            last = tap.feed(chunk) if tap else chunk
            if response.is_complete:
                break
            if last:
                await send({"type": "http.response.body", "body": last, "more_body": True})
        else:
            last = b""  # all has been sent
    except BackendError as error:
        exchange.outcome = "truncated"
        logger.warning("%s: the backend's answer ended early: %s", exchange.scope["path"], error)
        if held := tap.finish() if tap else b"":
            last = held
            await send({"type": "http.response.body", "body": held, "more_body": True})
        await _send_cut(exchange, watch, response, last)
        return None
    rest = last + (tap.finish() if tap else b"")
    watch.finish()
    await send({"type": "http.response.body", "body": rest, "more_body": False})
    return tap


async def _send_cut(
    exchange: RequestContext, watch: ClientWatch, response: Response, last: bytes
) -> None:
    """End an answer that is not whole. Not sending the end makes the server cut the connection."""
    watch.finish()
    is_between_events = last.endswith((b"\n\n", b"\r\n\r\n")) or not last
    if _is_stream(response) and is_between_events:
        event = b"data: " + error_body(502, "the backend's answer ended early") + b"\n\n"
        await exchange.send({"type": "http.response.body", "body": event, "more_body": False})


def _tap(response: Response, upstream: Upstream) -> Tap | None:
    encoding = get_header(response.headers, b"content-encoding") or "identity"
    if not upstream.wants_usage or response.status != 200 or encoding != "identity":
        return None
    is_stream = _is_stream(response)
    tap: Tap = JsonTap()
    if is_stream:
        tap = StrippingTap() if upstream.is_usage_added else StreamTap()
    if upstream.reader is None:
        return tap
    length = get_header(response.headers, b"content-length")
    upstream.reader.start(is_stream=is_stream, num_bytes=int(length) if length else None)
    return ReadingTap(tap, upstream.reader)


def _is_stream(response: Response) -> bool:
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
