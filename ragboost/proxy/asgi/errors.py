"""Respond with the proxy's own errors, in OpenAI's shape; the backend's are relayed unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from ragboost.errors import RequestError
from ragboost.proxy.serving.errors import error_body
from ragboost.requests.headers import new_request_id

INTERNAL_ERROR = "internal error in RAGBoost; see its log for the traceback"


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    request_id: str = "",
    retry_after_s: int | None = None,
) -> Response:
    headers = {"x-request-id": request_id} if request_id else {}
    if retry_after_s is not None:
        headers["retry-after"] = str(retry_after_s)
    body = error_body(status, message, param=param)
    return Response(body, status, headers=headers, media_type="application/json")


@contextmanager
def refusing_what_is_invalid() -> Iterator[None]:
    """Refuse a body or a query that pydantic rejects, by its first finding."""
    try:
        yield
    except ValidationError as invalid:
        first = invalid.errors()[0]
        param, message = ".".join(map(str, first["loc"])) or None, first["msg"]
        raise RequestError(f"{param}: {message}" if param else message, param=param) from None


async def on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError), error
    return error_response(
        error.status,
        str(error),
        param=error.param,
        request_id=request.headers.get("x-request-id") or new_request_id(),
        retry_after_s=error.retry_after_s,
    )


async def on_internal_error(_request: Request, _error: Exception) -> Response:
    return error_response(500, INTERNAL_ERROR)
