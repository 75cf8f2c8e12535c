"""A computation in pieces that goes on only while its owner waits for it.

It runs in a thread of its own, so that it may be written straight on, but never at the same time as
the owner: the two pass the turn to each other. Does not know what is computed.
"""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ragboost.chunk_cache.pace import Pace
from ragboost.errors import RagBoostError

T = TypeVar("T")


class TaskCancelled(Exception):  # noqa: N818  # no error: nobody wants the result any more
    """Ends the computation of a cancelled job, at its next rest."""


class ChunkTask(Pace, Generic[T]):
    """See the module.

    Args:
        work: the computation; it rests where the pace that it is given says.
        name: of the thread.

    Attributes:
        result: of the computation; None before it is done, and where it failed.
        error: why it failed, where it says so with an error of ours.
    """

    def __init__(self, work: Callable[[Pace], T], *, name: str) -> None:
        self.result: T | None = None
        self.error: RagBoostError | None = None
        self._work = work
        self._mine = threading.Semaphore(0)  # the computation may go on
        self._owners = threading.Semaphore(0)  # the owner may go on
        self._is_cancelled = self._is_over = self._is_broken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def advance(self, *, rows: int) -> bool:
        """Let it compute one piece of so many rows; returns whether it is done.

        Raises:
            RuntimeError: it failed with an error that is not ours; the thread's hook has logged it.
        """
        self.rows = rows
        self._pass_turn()
        if self._is_over and self._is_broken:
            raise RuntimeError(f"{self._thread.name} failed")
        return self._is_over

    def cancel(self) -> None:
        """End it, wherever it is. Nothing happens where it is over, or has not begun."""
        self._is_cancelled = True
        if self._thread.ident is not None and not self._is_over:
            self._pass_turn()

    def rest(self) -> None:
        """Give the turn back, in the computation's thread, and wait for the next one."""
        self._owners.release()
        self._mine.acquire()
        if self._is_cancelled:
            raise TaskCancelled

    def _pass_turn(self) -> None:
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()
        self._owners.acquire()
        if self._is_over:
            self._thread.join()

    def _run(self) -> None:
        self._is_broken = True
        try:
            self.result = self._work(self)
            self._is_broken = False
        except TaskCancelled:
            self._is_broken = False
        except RagBoostError as error:
            self.error, self._is_broken = error, False
        finally:
            self._is_over = True
            self._owners.release()
