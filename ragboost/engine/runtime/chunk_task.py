"""Run a computation in pieces, each while its owner waits.

The computation has a thread of its own, so that it can be written as straight-line code, but owner
and computation never run at the same time. `RowSelector` does that for prompts, one at a time.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from ragboost.chunk_cache.model.pace import Pace
from ragboost.engine.runtime.request import EngineRequest
from ragboost.errors import RagBoostError

T = TypeVar("T")

COMPUTE_ERRORS = (
    RagBoostError,
    RuntimeError,  # torch's, such as out of memory
    MemoryError,
    LookupError,
    ValueError,
    ArithmeticError,
)
"""Errors of a computation that say nothing about the state of the engine."""


class TaskCancelled(Exception):  # noqa: N818  # control flow, not an error
    """Unwinds the computation of a cancelled task."""


class ChunkTask(Pace, Generic[T]):
    """A computation that pauses between pieces.

    Args:
        work: the computation; it pauses wherever it calls `rest` of the given pace.
        name: of the thread.

    Attributes:
        result: of the computation; None until it is done, or if it failed.
        error: the error that ended it, one of `COMPUTE_ERRORS`, or None.
    """

    def __init__(self, work: Callable[[Pace], T], *, name: str) -> None:
        self.result: T | None = None
        self.error: Exception | None = None
        self._work = work
        self._may_compute = threading.Semaphore(0)
        self._has_paused = threading.Semaphore(0)
        self._is_cancelled = self._is_done = self._is_broken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def advance(self, *, rows: int) -> bool:
        """Compute one piece of at most `rows` rows; return whether the computation is done.

        Raises:
            RuntimeError: it failed with an unexpected error, which the thread's hook has logged.
        """
        self.rows = rows
        self._resume()
        if self._is_broken:
            raise RuntimeError(f"{self._thread.name} failed")
        return self._is_done

    def cancel(self) -> None:
        """End the computation at its current pause. Does nothing if it is done or not started."""
        self._is_cancelled = True
        if self._thread.ident is not None and not self._is_done:
            self._resume()

    def rest(self) -> None:
        """Pause the computation until the owner resumes it; called in its own thread."""
        self._has_paused.release()
        self._may_compute.acquire()
        if self._is_cancelled:
            raise TaskCancelled

    def _resume(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._may_compute.release()
        self._has_paused.acquire()
        if self._is_done:
            self._thread.join()

    def _run(self) -> None:
        is_broken = True
        try:
            self.result = self._work(self)
            is_broken = False
        except TaskCancelled:
            is_broken = False
        except COMPUTE_ERRORS as error:
            self.error, is_broken = error, False
        finally:
            self._is_broken, self._is_done = is_broken, True
            self._has_paused.release()


class RowSelector(ABC, Generic[T]):
    """Selects the rows of prompts to compute, in pieces between the steps of an engine.

    Attributes:
        selecting: the request whose selection has begun and is not done; None: there is none.
    """

    def __init__(self) -> None:
        self.selecting: EngineRequest | None = None
        self._task: ChunkTask[T] | None = None

    def select(self, request: EngineRequest, *, rows: int) -> None:
        """Advance the selection of rows for a request by one piece of at most `rows` rows.

        It is done once `request.is_selecting` is false.

        Raises:
            Exception: the selection failed; another one may begin.
        """
        if self._task is None:
            self.selecting = request
            self._task = ChunkTask(
                lambda pace: self._select(request, pace), name="ragboost-selecting"
            )
        assert self.selecting is request, "one request selects at a time"
        if not self._task.advance(rows=rows):
            return
        selected, error = self._task.result, self._task.error
        self.selecting = self._task = None
        if selected is not None:
            self._apply(request, selected)
        elif isinstance(error, RagBoostError):
            self._refuse(request, error)
        elif error is not None:
            raise error

    def cancel(self, request: EngineRequest) -> None:
        """Cancel the selection for a request, if one is active; its KV is not used afterwards."""
        if self._task is not None and self.selecting is request:
            self._task.cancel()
            self.selecting = self._task = None

    def close(self) -> None:
        """Cancel all work."""
        if self.selecting is not None:
            self.cancel(self.selecting)

    @abstractmethod
    def _select(self, request: EngineRequest, pace: Pace) -> T:
        """Fill in the KV of the other rows of the prompt; called in a thread of its own."""

    @abstractmethod
    def _apply(self, request: EngineRequest, selected: T) -> None:
        """Tell the request which rows to compute."""

    @abstractmethod
    def _refuse(self, request: EngineRequest, error: RagBoostError) -> None:
        """Do without: the selection is not possible."""
