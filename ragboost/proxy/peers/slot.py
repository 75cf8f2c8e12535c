"""A request's place at another worker of the proxy, as `relay` sees it."""

from ragboost.errors import BackendConnectionError, BackendError
from ragboost.proxy.upstream.backends import Backend


class WorkerLostError(BackendConnectionError):
    """Another worker died, or closed the connection, before its response began."""


class WorkerSlot:
    """The place; it moves to no other backend, since the request can be served here.

    Attributes:
        backend: the worker.
        cached_tokens: unknown here.
    """

    cached_tokens = 0

    def __init__(self, worker: Backend) -> None:
        self._worker = worker

    @property
    def backend(self) -> Backend:
        """The worker."""
        return self._worker

    def fail_over(self, error: BackendError) -> bool:
        """Give up a worker that is lost.

        Raises:
            WorkerLostError: it is; one that is slow is left to answer with an error.
        """
        if isinstance(error, BackendConnectionError):
            raise WorkerLostError(str(error)) from error
        return False

    def prefill_done(self, *, is_stream: bool = False) -> None:
        """Do nothing: the worker counts its own load."""
