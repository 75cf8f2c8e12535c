"""All exceptions that RAGBoost raises.

Grouped by who can fix the cause::

    RagBoostError
        ConfigError                 the operator: an invalid setting
        MissingExtraError           the operator: an optional package is not installed
        RequestError                the client: bad input, HTTP 4xx
            InvalidDocumentError
            SessionNotFoundError
            SessionConflictError
            SessionUnreadableError
            SessionStoreError       the operator: the store of sessions fails, HTTP 503
            ServerBusyError         nobody: too many bytes of bodies at a time, HTTP 503
        BackendError                the upstream server
            BackendConnectionError
                BackendRefusedError
                StaleConnectionError
            BackendTimeoutError
            BackendStatusError
        ContextIndexError           RAGBoost: a broken invariant of the context index
        EventStreamError            the engine's cache events: a gap, an unreadable frame
        ChunkCacheError             the chunk cache: stored KV that cannot be used
            ChunkLostError          stored KV became unusable during a request
            StoreUnavailableError   a remote store of KV fails or does not answer
            UnsupportedModelError   the model's attention does not allow KV reuse
"""

import json
from importlib import import_module
from types import ModuleType
from typing import Any


class RagBoostError(Exception):
    """Base class of all exceptions that RAGBoost raises."""


class ConfigError(RagBoostError):
    """A setting is unknown, malformed or out of range."""


class MissingExtraError(RagBoostError):
    """A required optional package is not installed."""


class RequestError(RagBoostError):
    """Invalid input from a client."""

    status = 400  # HTTP status of the proxy's response
    retry_after_s: int | None = None  # when to try again

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param  # path of the invalid field, such as `documents[3].text`, or None


class InvalidDocumentError(RequestError):
    """A document with an invalid text, id, title, score or metadata."""


class SessionNotFoundError(RequestError):
    """The named session does not exist or has expired."""

    status = 404


class SessionConflictError(RequestError):
    """An earlier turn of the session is still running, or another process has added one."""

    status = 409


class SessionUnreadableError(RequestError):
    """A stored turn of the session cannot be decoded, now or later."""

    status = 410


class SessionStoreError(RequestError):
    """The store of sessions cannot read or write, for example because its disk is full."""

    status = 503
    retry_after_s = 5


class ServerBusyError(RequestError):
    """The bodies of all running requests have too many bytes together."""

    status = 503
    retry_after_s = 1


class BackendError(RagBoostError):
    """The upstream server did not return a response."""


class BackendConnectionError(BackendError):
    """The connection to the backend failed."""


class BackendRefusedError(BackendConnectionError):
    """No connection could be made: nothing was sent, so another backend may be tried."""


class StaleConnectionError(BackendConnectionError):
    """A pooled connection was closed before the response; the server may have begun to work."""


class BackendTimeoutError(BackendError):
    """The backend did not respond in time."""


class BackendStatusError(BackendError):
    """The backend returned an error status for a response that RAGBoost needs."""


class ContextIndexError(RagBoostError):
    """An invariant of the context index does not hold."""


class EventStreamError(RagBoostError):
    """A cache event stream has a gap that replay could not fill, or an unreadable frame."""


class ChunkCacheError(RagBoostError):
    """Stored chunk KV cannot be used."""


class ChunkLostError(ChunkCacheError):
    """Stored KV became unusable during a request; the request can be retried without it."""


class StoreUnavailableError(ChunkCacheError):
    """A remote store of chunk KV fails or does not answer; nothing is known about its contents."""


class UnsupportedModelError(ChunkCacheError):
    """The model's attention does not allow KV reuse."""


def error_object(message: str, *, kind: str, code: str, param: str | None = None) -> dict[str, Any]:
    """Return an error in OpenAI's shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_JSON_TYPES = {
    bool: "boolean",  # an int, too
    int: "number",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def json_type(value: object) -> str:
    """Return JSON's word for the type of a value, for a message; Python's if it has none."""
    names = (name for kind, name in _JSON_TYPES.items() if isinstance(value, kind))
    return next(names, type(value).__name__)


def show(value: object) -> str:
    """Return a value for a message: as JSON, in one line of printable text, shortened."""
    try:
        text = json.dumps(value, ensure_ascii=False)
        text = text if text.isprintable() else json.dumps(value)
    except TypeError:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number that is too long to print"
    return text if len(text) <= 60 else text[:57] + "..."


def import_extra(module: str, *, extra: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise MissingExtraError(
            f"{error.name} is not installed; it comes with: "
            f'pip install "ragboost-middleware[{extra}]"'
        ) from error
