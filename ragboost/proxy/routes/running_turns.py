"""Let each session answer one turn at a time. Knows ids and tasks, not the content of a turn."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial

from ragboost.errors import SessionConflictError

logger = logging.getLogger(__name__)


class RunningTurn:
    def __init__(self, release: Callable[["RunningTurn"], None]) -> None:
        self.is_deleted = False  # the session was deleted meanwhile
        # The task that stores the turn; None before the backend's response is complete.
        self.commit: asyncio.Task[None] | None = None
        self._release = release

    def end(self, commit: Coroutine[None, None, None] | None) -> None:
        """End the turn; its `commit` stores it even if the client leaves meanwhile."""
        if commit is None:
            self._release(self)
            return
        self.commit = asyncio.create_task(commit)
        self.commit.add_done_callback(lambda _: self._release(self))

    async def stored(self) -> None:
        """Wait until the turn is stored; raise the RequestError of one that cannot be."""
        if self.commit is not None:
            await asyncio.shield(self.commit)


class RunningTurns:
    def __init__(self) -> None:
        self._turns: dict[tuple[str, str], RunningTurn] = {}  # by owner and session

    @asynccontextmanager
    async def hold(self, session_id: str, *, owner: str) -> AsyncIterator[RunningTurn]:
        """Reserve a session for a turn until the turn has ended and is stored."""
        key = owner, session_id  # nobody learns of others' sessions by a conflict
        if key in self._turns:
            raise SessionConflictError(
                f"session {session_id} is answering another turn; retry when that has ended",
                param="session_id",
            )
        turn = self._turns[key] = RunningTurn(partial(self._release, key))
        try:
            yield turn
        finally:
            if turn.commit is None:
                self._release(key, turn)

    def delete(self, owner: str, session_id: str) -> bool:
        """Note that a session was deleted, whose running turn would else bring it back."""
        turn = self._turns.get((owner, session_id))
        if turn is None:
            return False
        turn.is_deleted = True
        return True

    async def drain(self) -> None:
        """Wait until every completed turn is stored."""
        tasks = [turn.commit for turn in self._turns.values() if turn.commit is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _release(self, key: tuple[str, str], turn: RunningTurn) -> None:
        if self._turns.get(key) is turn:
            del self._turns[key]
        if turn.commit is None or not turn.commit.done() or turn.commit.cancelled():
            return
        if (error := turn.commit.exception()) is not None:
            is_clients = isinstance(error, SessionConflictError)  # who deleted it, for example
            level = logging.INFO if is_clients else logging.ERROR
            logger.log(level, "a turn of a session: %s", error)
