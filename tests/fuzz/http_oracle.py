"""Read a byte stream of HTTP requests with h11, which shares no code with the proxy."""

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


def read_stream(data: bytes) -> OracleReading:
    """Parse all requests of a connection, as a server that answers each of them."""
    connection = _connect(data)
    reading, head, body = OracleReading(), None, b""
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            if str(error) == "no request line received":  # an empty line, which servers may skip
                connection = _connect(connection.trailing_data[0])
                continue
            reading.problem = str(error)
            return reading
        if isinstance(event, h11.Request) and event.method == b"CONNECT":
            reading.problem = "a proxy may refuse to be a tunnel"
            return reading
        if isinstance(event, h11.Request):
            head, body = event, b""
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            assert head is not None
            reading.requests.append(
                SentRequest(head.method.decode(), path_of(head.target.decode()), body)
            )
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return reading
            connection.start_next_cycle()
        else:
            return reading  # more data is needed


def _connect(data: bytes) -> h11.Connection:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    connection.receive_data(data)
    return connection


def path_of(target: str) -> str:
    """Return path and query of a target, which may be a whole URL."""
    if target.startswith(("/", "*")):
        return target
    parts = urlsplit(target)
    path = parts.path or "/"
    return f"{path}?{parts.query}" if parts.query else path
