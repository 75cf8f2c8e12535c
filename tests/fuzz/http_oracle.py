"""Read a byte stream of HTTP requests with h11, which shares no code with the proxy."""

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11

from tests.fuzz.http_streams import SentRequest

_MAX_HEAD_BYTES = 64 * 1024


@dataclass
class OracleReading:
    """What h11 makes of a stream.

    Attributes:
        requests: the complete ones.
        problem: why what follows is not HTTP; empty if it is.
    """

    requests: list[SentRequest] = field(default_factory=list)
    problem: str = ""


def read_stream(data: bytes, *, is_lenient: bool = False) -> OracleReading:
    """Parse all requests of a connection, as a server that answers each of them.

    Args:
        data: all that a client sends.
        is_lenient: overlook what servers may overlook: empty lines before a request line, and
            spaces in it.
    """
    reading = OracleReading()
    while data:
        try:
            data = _read_request(reading, data)
        except h11.RemoteProtocolError as error:
            repaired = _repair(data) if is_lenient else data
            if repaired == data:
                reading.problem = str(error)
                return reading
            data = repaired
    return reading


def _read_request(reading: OracleReading, data: bytes) -> bytes:
    """Add a request to a reading; return the bytes behind it, none if it was the last."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    connection.receive_data(data)
    head = connection.next_event()
    if not isinstance(head, h11.Request):
        return b""
    if head.method == b"CONNECT":
        raise h11.RemoteProtocolError("a proxy may refuse to be a tunnel")
    body = b""
    while isinstance(event := connection.next_event(), h11.Data):
        body += bytes(event.data)
    if not isinstance(event, h11.EndOfMessage):
        return b""
    reading.requests.append(SentRequest(head.method.decode(), path_of(head.target.decode()), body))
    connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
    connection.send(h11.EndOfMessage())
    return b"" if connection.our_state is h11.MUST_CLOSE else connection.trailing_data[0]


def _repair(data: bytes) -> bytes:
    return re.sub(rb"\A([A-Z]+) +(\S+) +(?=HTTP/)", rb"\1 \2 ", data.lstrip(b"\r\n"))


def path_of(target: str) -> str:
    """Return path and query of a target, which may be a whole URL."""
    if target.startswith(("/", "*")):
        return target
    parts = urlsplit(target)
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path
