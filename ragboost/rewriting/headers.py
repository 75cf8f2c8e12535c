"""Read values from a request's raw headers, and clean text of clients for the log."""

import hashlib
import os
from collections.abc import Sequence

_MAX_SHOWN = 512

RawHeaders = Sequence[tuple[bytes, bytes]]
"""Headers as ASGI gives them, with names in lower case."""


def get_header(headers: RawHeaders, name: bytes) -> str | None:
    """Return the first value of a header with a lower-case `name`, or None."""
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
    """Return a random `x-request-id`."""
    return os.urandom(16).hex()


def user_of(headers: RawHeaders) -> str:
    """Identify the user of a request by a hash of its credentials."""
    digest = hashlib.sha256()
    for name, value in headers:
        if name in (b"authorization", b"x-api-key"):
            digest.update(b"%s %d " % (name, len(value)))
            digest.update(value)
    return digest.hexdigest()[:32]


def printable(text: str) -> str:
    """Return a text for a log line: one line, without control characters, cut if it is long."""
    shown = text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "..."
    if shown.isprintable():
        return shown
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)
    return "".join(escaped)
