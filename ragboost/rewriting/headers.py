"""Read values from a request's raw headers. Knows no header's meaning."""

import os
from collections.abc import Sequence

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
