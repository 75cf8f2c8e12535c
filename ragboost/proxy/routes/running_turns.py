"""Let each session answer one turn at a time. Knows ids and tasks, not the content of a turn."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from ragboost.errors import SessionConflictError

logger = logging.getLogger(__name__)


class RunningTurn:
    """A turn that is being answered.

    Attributes:
        is_ending: returns True if the client may have the whole response already.
        commit: the task that stores the turn; None before the response is complete.
        is_over: set when another turn may begin.
    """

    def __init__(self) -> None:
        self.is_ending: Callable[[], bool] = lambda: False
        self.commit: asyncio.Task[None] | None = None
        self.is_over = asyncio.Event()

    def start_commit(self, work: Coroutine[None, None, None]) -> None:
        """Store the turn in a task of its own: the client may leave with the whole response."""
        self.commit = asyncio.create_task(work)


class RunningTurns:
    """The turns that are being answered, at most one per session."""

    def __init__(self) -> None:
        self._turns: dict[str, RunningTurn] = {}

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncIterator[RunningTurn]:
        """Reserve a session for a turn until the turn has ended and is stored.

        Waits for another turn whose client may have the whole response already.

        Raises:
            SessionConflictError: another turn of the session is being answered.
        """
        while (other := self._turns.get(session_id)) is not None:
            if not other.is_ending():
                raise SessionConflictError(
                    f"session {session_id} is answering another turn; retry when that has ended",
                    param="session_id",
                )
            await other.is_over.wait()
        turn = self._turns[session_id] = RunningTurn()
        try:
            yield turn
        finally:
            if turn.commit is None:
                self._release(session_id)
            else:
                turn.commit.add_done_callback(lambda task: self._committed(session_id, task))

    async def settled(self, session_id: str) -> None:
        """Wait until a turn whose client may have the whole response is stored."""
        turn = self._turns.get(session_id)
        if turn is not None and turn.is_ending():
            await turn.is_over.wait()

    async def drain(self) -> None:
        """Wait until every completed turn is stored."""
        tasks = [turn.commit for turn in self._turns.values() if turn.commit is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _release(self, session_id: str) -> None:
        self._turns.pop(session_id).is_over.set()

    def _committed(self, session_id: str, task: asyncio.Task[None]) -> None:
        self._release(session_id)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a turn of session %s was not stored", session_id, exc_info=error)
