"""Relay one response from the backend to the client, byte for byte.

Flow control is left to the sockets: while the client does not read, nothing is read from the
backend.
"""

import logging
import time
from urllib.parse import SplitResult, urlsplit, urlunsplit

from ragboost.errors import BackendError, BackendTimeoutError, RequestError
from ragboost.proxy.asgi.client_exchange import REQUEST_ID, ClientExchange
from ragboost.proxy.asgi.hosts import is_loopback
from ragboost.proxy.records import SentRequest
from ragboost.proxy.routing.admission import Admission
from ragboost.proxy.serving.errors import error_body
from ragboost.proxy.upstream.client import UpstreamResponse
from ragboost.proxy.upstream.response_reader import ResponseReader
from ragboost.requests.headers import RawHeaders, get_header, response_headers, with_header
from ragboost.requests.wires.usage import Usage

logger = logging.getLogger(__name__)

RECEIPT = b"x-ragboost-receipt"
_EVENT_STREAM = "text/event-stream"
_LOCATIONS = (b"location", b"content-location")


async def relay(
    exchange: ClientExchange,
    slot: Admission,
    sent: SentRequest,
    *,
    added: RawHeaders = (),
    reader: ResponseReader | None = None,
) -> Usage | None:
    """Send a request to its backend and the response to the client, with `added` headers; return
    the usage, if reported, also by a response that ends early behind it.

    If the backend refuses the connection, others are tried. A backend that fails before its
    response begins is an error of the proxy's own (502, 504). One that fails later truncates the
    response: a stream of events ends with an error event where one can be placed, anything else
    ends early, so that the client sees that it is incomplete.
    """
    response = await _request(exchange, slot, sent)
    if response is None:
        return None
    try:
        exchange.outcome = _outcome(response.status)
        reader, is_stream = reader if _is_readable(response) else None, _is_stream(response)
        await _send_head(exchange, slot, response, added, reader, is_stream=is_stream)
        await _send_body(exchange, slot, response, reader, is_stream=is_stream)
        return reader.usage if reader is not None else None
    finally:
        response.close()  # no effect after the last byte; before it, this cancels the backend


async def _request(
    exchange: ClientExchange, slot: Admission, sent: SentRequest
) -> UpstreamResponse | None:
    """Send the request; if no backend accepts it, answer with an error and return None."""
    headers = _with_request_id(sent.headers, exchange)
    while True:
        try:
            return await slot.backend.request(
                exchange.method, exchange.target, headers=headers, body=sent.body
            )
        except BackendError as error:
            name, path = slot.backend.name, exchange.shown_path
            logger.warning("%s %s: backend %s: %s", exchange.method, path, name, error)
            if slot.fail_over(error):
                continue
            is_timeout = isinstance(error, BackendTimeoutError)
            exchange.outcome = "backend_timeout" if is_timeout else "backend_unreachable"
            await exchange.send_error(504 if is_timeout else 502, str(error))
            return None


async def _send_head(
    exchange: ClientExchange,
    slot: Admission,
    response: UpstreamResponse,
    added: RawHeaders,
    reader: ResponseReader | None,
    *,
    is_stream: bool,
) -> None:
    mount = exchange.scope.get("root_path", "")
    headers = [
        (name, client_location(value, backend_url=slot.backend.url, mount=mount))
        if name in _LOCATIONS
        else (name, value)
        for name, value in response_headers(response.headers)
    ]
    if reader is not None and reader.start(is_stream=is_stream):
        headers = [(name, value) for name, value in headers if name != b"content-length"]
    if get_header(headers, REQUEST_ID) is None:
        headers.append((REQUEST_ID, exchange.request_id.encode("latin-1")))
    if added:
        headers.extend(added)
        name = slot.backend.name.encode("latin-1", "replace")
        headers.append((b"x-ragboost-backend", name))
        headers.append((b"x-ragboost-cached-tokens-predicted", b"%d" % slot.cached_tokens))
    is_held = reader is not None and reader.has_receipt and not is_stream
    await exchange.start_response(response.status, headers, is_held=is_held)


async def _send_body(
    exchange: ClientExchange,
    slot: Admission,
    response: UpstreamResponse,
    reader: ResponseReader | None,
    *,
    is_stream: bool,
) -> None:
    last = sent = b""
    try:
        while chunk := await response.read():
            if exchange.first_byte is None:
                exchange.first_byte = time.perf_counter()
                slot.prefill_done(is_stream=exchange.status == 200 and is_stream)
            last = reader.feed(chunk) if reader else chunk
            if response.is_complete:
                break
            if reader and reader.must_settle:
                await reader.settle()
            if last:
                await exchange.send_body(last)
                sent = last
        else:
            last = b""  # everything was sent
        rest = last + (reader.finish() if reader else b"")
        if reader and reader.must_settle:
            await reader.settle()
    except RequestError as error:
        exchange.outcome = "truncated"
        await exchange.release()
        await _send_cut(exchange, response, sent, status=error.status, reason=str(error))
        return
    except BackendError as error:
        exchange.outcome = "truncated"
        name, path = slot.backend.name, exchange.shown_path
        logger.warning("%s: the response of backend %s ended early: %s", path, name, error)
        if held := reader.take_held() if reader else b"":
            last = held
            await exchange.send_body(held)
        await exchange.release()
        await _send_cut(exchange, response, last)
        return
    receipt = reader.receipt() if reader else None
    await exchange.finish(rest, header=(RECEIPT, receipt) if receipt is not None else None)


async def _send_cut(
    exchange: ClientExchange,
    response: UpstreamResponse,
    last: bytes,
    *,
    status: int = 502,
    reason: str = "the backend's response ended early",
) -> None:
    is_between_events = last.endswith((b"\n\n", b"\r\n\r\n")) or not last
    event = b"data: " + error_body(status, reason) + b"\n\n"
    await exchange.cut(event if _is_stream(response) and is_between_events else None)


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


def _with_request_id(headers: RawHeaders, exchange: ClientExchange) -> RawHeaders:
    if not exchange.has_given_id or get_header(headers, REQUEST_ID) is None:
        headers = [*headers, (REQUEST_ID, exchange.request_id.encode("latin-1"))]
    for name, value in exchange.trace_headers.items():
        headers = with_header(headers, name.lower().encode(), value.encode())
    return headers


def client_location(value: bytes, *, backend_url: str, mount: str = "") -> bytes:
    """Return the value of a `location` for the client: a path of the proxy if the value is an
    address of the backend, else the value itself.

    Args:
        backend_url: base URL of the backend that responded.
        mount: path below which the proxy is served.
    """
    try:
        parts, backend = urlsplit(value.decode("latin-1")), urlsplit(backend_url)
        if parts.netloc and _server(parts) != _server(backend):
            return value
    except ValueError:
        return value
    is_path = not parts.scheme and parts.path.startswith("/") and bool(backend.path or mount)
    if not (parts.netloc or is_path):
        return value
    path = parts.path or "/"
    if backend.path and (path + "/").startswith(backend.path + "/"):
        path = path.removeprefix(backend.path)
    path = mount + "/" + path.lstrip("/")  # two slashes would begin with a host
    return urlunsplit(("", "", path, parts.query, parts.fragment)).encode("latin-1")


def _server(parts: SplitResult) -> tuple[str, int | None]:
    """Return host and port, which a backend behind TLS may name with the port of plain HTTP, and
    one on this machine by another name of it."""
    port, host = None if parts.port in (80, 443) else parts.port, parts.hostname or ""
    return "localhost" if is_loopback(host) else host.removesuffix("."), port
