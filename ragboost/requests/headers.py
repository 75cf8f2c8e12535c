"""Read a request's raw headers, and copy headers through the proxy.

All but the hop-by-hop ones are copied (RFC 9110 section 7.6.1). Also cleans text of clients for
the log.
"""

import hashlib
import os
from collections.abc import Sequence

_MAX_SHOWN = 512

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Headers as ASGI gives them, with names in lower case."""

CREDENTIALS = (b"authorization", b"x-api-key", b"api-key")
"""Where clients send their API keys: OpenAI's, Anthropic's and Azure's."""

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
# The client for the backend writes its own host and content-length.
_NOT_FORWARDED = _HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_ENCODING = b"accept-encoding"


def get_header(headers: RawHeaders, name: bytes) -> str | None:
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def decode_value(value: bytes) -> str:
    """Decode a value as UTF-8, or as Latin-1 if it is not UTF-8."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def new_request_id() -> str:
    return os.urandom(16).hex()


def user_of(headers: RawHeaders) -> str:
    """Identify the user of a request by a hash of its credentials."""
    digest = hashlib.sha256()
    for name, value in headers:
        if name in CREDENTIALS:
            digest.update(b"%s %d " % (name, len(value)))
            digest.update(value)
    return digest.hexdigest()[:32]


def request_headers(headers: RawHeaders, *, is_read: bool = False) -> list[tuple[bytes, bytes]]:
    """Copy a client's headers for the backend.

    Args:
        headers: the client's.
        is_read: the proxy reads the response too, so ask for one without content coding.
    """
    dropped = _with_connection_options(_NOT_FORWARDED, headers)
    forwarded = [header for header in headers if header[0] not in dropped]
    if is_read and any(name == _ENCODING for name, _ in forwarded):
        return with_header(forwarded, _ENCODING, b"identity")
    return forwarded


def with_header(headers: RawHeaders, name: bytes, value: bytes) -> list[tuple[bytes, bytes]]:
    return [*(header for header in headers if header[0] != name), (name, value)]


def response_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    dropped = _with_connection_options(_HOP_BY_HOP, headers)
    return [header for header in headers if header[0] not in dropped]


def _with_connection_options(names: frozenset[bytes], headers: RawHeaders) -> frozenset[bytes]:
    for name, value in headers:
        if name == b"connection":
            options = frozenset([token.strip().lower() for token in value.split(b",")])
            names |= options - {b"close", b"content-length", b"content-type"}
    return names


def printable(text: str) -> str:
    """Return a text for a log line: one line, without control characters, cut if it is long."""
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    if shown.isprintable():
        return shown
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return "".join(escaped)
