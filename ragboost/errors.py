"""Every error that RAGBoost raises on purpose.

Grouped by who can fix it::

    RagBoostError
        ConfigError                 the operator: a setting is wrong
        MissingExtraError           the operator: an optional package is not installed
        RequestError                the caller: bad input, HTTP 4xx
            InvalidDocumentError
            SessionNotFoundError
            SessionConflictError
        BackendError                the upstream server
            BackendConnectionError
            BackendTimeoutError
            BackendStatusError
        ContextIndexError           we: a broken invariant of the context index
        EventStreamError            a gap that could not be filled, an unknown event
        ChunkCacheError             chunk KV that cannot be used
            ChunkLostError          stored KV turned out unusable while it was used
            UnsupportedModelError   the model's attention cannot be reused
"""

from importlib import import_module
from types import ModuleType


class RagBoostError(Exception):
    """Base of all errors that RAGBoost raises on purpose."""


class ConfigError(RagBoostError):
    """A setting is unknown, malformed or out of range."""


class MissingExtraError(RagBoostError):
    """An optional package is needed and not installed."""


class RequestError(RagBoostError):
    """Bad input from a caller.

    Attributes:
        param: path of the offending field, such as `documents[3].text`, or None.
        status: the HTTP status that the proxy answers with.
    """

    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidDocumentError(RequestError):
    """A document has no usable text, id or score."""


class SessionNotFoundError(RequestError):
    """The named session does not exist or has expired."""

    status = 404


class SessionConflictError(RequestError):
    """The session's earlier turn is not finished, or another process has continued it."""

    status = 409


class BackendError(RagBoostError):
    """The upstream server could not answer."""


class BackendConnectionError(BackendError):
    """No connection to the backend."""


class BackendTimeoutError(BackendError):
    """The backend did not answer in time."""


class BackendStatusError(BackendError):
    """The backend answered with an error status where an answer was needed."""


class ContextIndexError(RagBoostError):
    """An invariant of the context index does not hold."""


class EventStreamError(RagBoostError):
    """A cache event stream has a gap that could not be filled, or an unreadable frame."""


class ChunkCacheError(RagBoostError):
    """Stored chunk KV cannot be used."""


class ChunkLostError(ChunkCacheError):
    """Stored KV turned out to be unusable while a request was using it; the request can be computed
    again without it."""


class UnsupportedModelError(ChunkCacheError):
    """The model's attention does not allow KV reuse."""


def import_extra(module: str, *, extra: str) -> ModuleType:
    """Import an optional `module`, or say which extra of RAGBoost brings it.

    Raises:
        MissingExtraError: the module is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise MissingExtraError(
            f"{module} is not installed; it comes with: pip install 'ragboost[{extra}]'"
        ) from error
