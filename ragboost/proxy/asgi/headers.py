"""Which headers pass the proxy: hop-by-hop ones stop here, everything else goes on unchanged.

Knows names, not values, except `connection`, which nominates more names (RFC 9110 section 7.6.1).
"""

from ragboost.rewriting.headers import RawHeaders

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# Written anew for the backend: its host, and the length of the body as we send it.
_NOT_SENT = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_ENCODING = b"accept-encoding"


def request_headers(headers: RawHeaders, *, is_read: bool = False) -> list[tuple[bytes, bytes]]:
    """Copy a client's headers for the backend.

    Args:
        headers: the client's.
        is_read: ask for an answer without content coding, since we read it, too.
    """
    dropped = _NOT_SENT | _nominated(headers)
    passed = [header for header in headers if header[0] not in dropped]
    if is_read and any(name == _ENCODING for name, _ in passed):
        return with_header(passed, _ENCODING, b"identity")
    return passed


def with_header(headers: RawHeaders, name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    """The headers with one value for a name."""
    return [*(header for header in headers if header[0] != name), (name, value)]


def response_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Copy a backend's headers for the client, byte for byte."""
    dropped = _HOP_BY_HOP | _nominated(headers)
    return [header for header in headers if header[0] not in dropped]


def _nominated(headers: RawHeaders) -> frozenset[bytes]:
    names: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return frozenset(names - {b"close", b"content-length", b"content-type"})
