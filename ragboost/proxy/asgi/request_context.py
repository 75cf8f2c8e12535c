"""Hold one request and its response, as the endpoints see them."""

import re
import time
from urllib.parse import quote

from starlette.datastructures import QueryParams
from starlette.types import Receive, Scope, Send

from ragboost.proxy.asgi.errors import error_response
from ragboost.rewriting.headers import decode_value, get_header, new_request_id, printable

REQUEST_ID = b"x-request-id"
_CONVERSATION = re.compile(r"(/(?:sessions|responses|conversations|threads)/+)[^/]+")


class RequestContext:
    """A request being served, its ASGI channel, and what is recorded about it.

    Attributes:
        endpoint: name of the route in metrics.
        headers: the request's, names in lower case.
        request_id: the client's `x-request-id`, or a new one.
        team: of the client's API key; empty if there is one team.
        model: the requested model; empty if unknown.
        outcome: label for metrics; `ok` unless the request failed or was refused.
        status: HTTP status of the response; 0 if none was sent.
        notes: additional fields for the access log and the span: numbers and short names only.
        trace_headers: headers for the backend that make the proxy's span its parent.
        started: time at which the request's head was complete, as `time.perf_counter` seconds.
        first_byte: time of the response body's first byte, on the same clock; None before it.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, *, endpoint: str) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.endpoint = endpoint
        self.headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._path = str(scope["path"])
        self.request_id = get_header(self.headers, REQUEST_ID) or new_request_id()
        self.team = ""
        self.model = ""
        self.outcome = "ok"
        self.status = 0
        self.notes: dict[str, str | int | float | None] = {}
        self.trace_headers: dict[str, str] = {}
        self.started = time.perf_counter()
        self.first_byte: float | None = None

    @property
    def method(self) -> str:
        """HTTP method, in upper case."""
        return str(self.scope["method"])

    @property
    def target(self) -> str:
        """Path and query, encoded as the client sent them, without a path where the app is mounted,
        such as Ray Serve's route prefix."""
        path: bytes = self.scope.get("raw_path") or quote(self.scope["path"]).encode()
        mount = quote(self.scope.get("root_path", "")).encode()
        if mount and path.startswith(mount + b"/"):
            path = path.removeprefix(mount)
        query: bytes = self.scope["query_string"]
        # Without a slash, it could become part of the backend's address.
        if not path.startswith(b"/") and path != b"*":
            path = b"/" + path
        return decode_value(path + b"?" + query if query else path)

    @property
    def shown_path(self) -> str:
        """Path for logs: printable, without the ids of conversations."""
        return printable(_CONVERSATION.sub(r"\1*", self._path))

    @property
    def query(self) -> QueryParams:
        """Decoded query parameters."""
        return QueryParams(self.scope["query_string"])

    async def send_error(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """Respond with an error of the proxy's own."""
        self.status = status
        headers = {"x-request-id": self.request_id}
        if retry_after_s is not None:
            headers["retry-after"] = str(retry_after_s)
        response = error_response(status, message, param=param, headers=headers)
        await response(self.scope, self.receive, self.send)
