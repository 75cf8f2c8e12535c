"""Which sessions are answering a turn: one at a time. Knows ids and tasks, not what a turn is."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

from ragboost.errors import SessionConflictError

logger = logging.getLogger(__name__)


class RunningTurn:
    """A turn that is being answered.

    Attributes:
        is_ending: tells whether the client may have its whole answer already.
        commit: the task that stores it, once there is one.
        is_over: set when another turn may begin.
    """

    def __init__(self) -> None:
        self.is_ending: Callable[[], bool] = lambda: False
        self.commit: asyncio.Task[None] | None = None
        self.is_over = asyncio.Event()

    def start_commit(self, work: Coroutine[None, None, None]) -> None:
        """Store the turn in a task of its own, for the client may leave now that it has all."""
        self.commit = asyncio.create_task(work)


class RunningTurns:
    """The turns that are being answered, by session."""

    def __init__(self) -> None:
        self._turns: dict[str, RunningTurn] = {}

    @asynccontextmanager
    async def hold(self, session_id: str) -> AsyncIterator[RunningTurn]:
        """Answer a turn. The session is free again when it is over and stored.

        Raises:
            SessionConflictError: another turn of the session is being answered. One whose client
                may have the whole answer is waited for instead.
        """
        while (other := self._turns.get(session_id)) is not None:
            if not other.is_ending():
                raise SessionConflictError(
                    f"session {session_id} is answering another turn; wait for its end",
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
        """Wait for a turn whose client may have the whole answer, so that it is seen."""
        turn = self._turns.get(session_id)
        if turn is not None and turn.is_ending():
            await turn.is_over.wait()

    async def drain(self) -> None:
        """Wait until every turn that is whole has been stored."""
        tasks = [turn.commit for turn in self._turns.values() if turn.commit is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _release(self, session_id: str) -> None:
        self._turns.pop(session_id).is_over.set()

    def _committed(self, session_id: str, task: asyncio.Task[None]) -> None:
        self._release(session_id)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a turn of session %s was not stored", session_id, exc_info=error)
