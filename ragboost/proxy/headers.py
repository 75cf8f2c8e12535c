"""Which headers pass the proxy: hop-by-hop ones stop here, everything else goes on unchanged.

Knows names, not values, except `connection`, which nominates more names (RFC 9110 section 7.6.1).
"""

import os
from collections.abc import Iterable

from multidict import CIMultiDict

RawHeaders = Iterable[tuple[bytes, bytes]]

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
_REQUEST_ONLY = frozenset({b"host", b"content-length", b"expect"})


def get_header(headers: RawHeaders, name: bytes) -> str | None:
    """Return the first value of a header with a lower-case `name`, or None."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def decode_value(value: bytes) -> str:
    """Decode bytes that the HTTP client shall write again: it writes UTF-8, so UTF-8 stays."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def request_headers(headers: RawHeaders, *, is_read: bool = False) -> CIMultiDict[str]:
    """Copy a client's headers for the backend.

    Args:
        headers: as ASGI gives them, names in lower case.
        is_read: ask for an answer without content coding, since we read it, too.
    """
    headers = list(headers)
    dropped = _HOP_BY_HOP | _REQUEST_ONLY | _nominated(headers)
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers:
        if name not in dropped:
            passed.add(name.decode("latin-1"), decode_value(value))
    if is_read and "accept-encoding" in passed:
        passed["accept-encoding"] = "identity"
    return passed


def response_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """Copy a backend's headers for the client, byte for byte, names in lower case."""
    lowered = [(name.lower(), value) for name, value in headers]
    dropped = _HOP_BY_HOP | _nominated(lowered)
    return [(name, value) for name, value in lowered if name not in dropped]


def new_request_id() -> str:
    """Make an `x-request-id` for a request that came without one."""
    return os.urandom(16).hex()


def _nominated(headers: RawHeaders) -> frozenset[bytes]:
    names: set[bytes] = set()
    for name, value in headers:
        if name == b"connection":
            names.update(token.strip().lower() for token in value.split(b","))
    return frozenset(names - {b"close", b"content-length", b"content-type"})
