"""Render errors in OpenAI's shape."""

import msgspec

from ragboost.errors import error_object

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    408: "request_timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    500: "internal_error",
    501: "invalid_request_error",
    502: "backend_connection_error",
    503: "backend_unavailable_error",
    504: "backend_timeout_error",
    505: "invalid_request_error",
}


def error_body(status: int, message: str, *, param: str | None = None) -> bytes:
    kind = _TYPES.get(status, "internal_error")
    return msgspec.json.encode(error_object(message, kind=kind, code=str(status), param=param))
