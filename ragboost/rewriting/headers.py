"""Read values out of a request's raw headers, as ASGI gives them. Knows no header's meaning."""

import os
from collections.abc import Sequence

RawHeaders = Sequence[tuple[bytes, bytes]]
"""As ASGI gives them: names in lower case."""


def get_header(headers: RawHeaders, name: bytes) -> str | None:
    """Return the first value of a header with a lower-case `name`, or None."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


def decode_value(value: bytes) -> str:
    """Decode bytes that may be UTF-8 or not."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def new_request_id() -> str:
    """Make an `x-request-id` for a request that came without one."""
    return os.urandom(16).hex()
