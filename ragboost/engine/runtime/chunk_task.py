"""Run a computation in pieces, each while its owner waits.

The computation has a thread of its own, so that it can be written as straight-line code, but owner
and computation never run at the same time. Does not know what is computed.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ragboost.chunk_cache.pace import Pace
from ragboost.errors import RagBoostError

T = TypeVar("T")


class TaskCancelled(Exception):  # noqa: N818  # control flow, not an error
    """Unwinds the computation of a cancelled task."""


class ChunkTask(Pace, Generic[T]):
    """A computation that pauses between pieces.

    Args:
        work: the computation; it pauses wherever it calls `rest` of the given pace.
        name: of the thread.

    Attributes:
        result: of the computation; None until it is done, or if it failed.
        error: the `RagBoostError` that ended it, or None.
    """

    def __init__(self, work: Callable[[Pace], T], *, name: str) -> None:
        self.result: T | None = None
        self.error: RagBoostError | None = None
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
        except RagBoostError as error:
            self.error, is_broken = error, False
        finally:
            self._is_broken, self._is_done = is_broken, True
            self._has_paused.release()
