"""The contract of a store of chat sessions, whose turns are bytes."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from ragboost.config import SessionSettings
from ragboost.errors import SessionStoreError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ChatSession:
    """A session without its turns. Times are seconds since 1970."""

    id: str  # unique over all owners
    owner: str  # the user who may access it
    created_at: float
    used_at: float  # time of its last turn, or of its creation
    num_turns: int = 0
    user: str | None = None  # who may list it; nobody may if None
    model: str | None = None  # of turns that name none
    system: str | None = None  # prompt
    metadata: Mapping[str, str] = field(default_factory=dict)  # the caller's, unchanged


class Transcript(NamedTuple):
    session: ChatSession
    turns: Sequence[bytes]  # all, if they are as many as the session says


class Page(NamedTuple):
    sessions: Sequence[ChatSession]
    has_more: bool


class ChatSessionStore(ABC):
    """Storage of sessions and their turns. Used by one event loop, between `open` and `close`.

    A session that has expired, or belongs to another owner, counts as unknown. The least recently
    used sessions are dropped beyond the bounds. No method blocks the event loop. A method that
    fails raises SessionStoreError, calls `on_failure`, and has changed nothing. Settings that lack
    what the store needs are a ConfigError, a client that is not installed a MissingExtraError.
    """

    is_shared: ClassVar[bool]  # processes on one machine may use it together
    is_on_disk: ClassVar[bool] = False  # in a file, which may turn out to be unusable at the start
    connects_replicas: ClassVar[bool] = False  # through `session.url`, proxies exchange messages

    problem: str | None = None
    """The last failure, not in words of the server or of the system, which are for the log."""

    def __init__(
        self,
        settings: SessionSettings,
        *,
        max_bytes: int = 256 << 20,
        clock: Callable[[], float] | None = None,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        self._settings = settings
        self._max_bytes = max_bytes  # of all turns
        self._clock = _steady_clock() if clock is None else clock
        self._on_failure = on_failure

    def now(self) -> float:
        """Return the time in seconds since 1970, steady while the system's clock is set."""
        return self._clock()

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """Raise SessionStoreError if a turn could not be stored now."""

    @abstractmethod
    async def create(self, session: ChatSession) -> None: ...

    @abstractmethod
    async def read(self, owner: str, session_id: str) -> Transcript | None: ...

    @abstractmethod
    async def append(self, session: ChatSession, turn: bytes) -> bool:
        """Add a turn to a session as `get` returned it; False if it is unknown or has changed."""

    @abstractmethod
    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        """Add a session with all its turns that was dropped or has expired during a turn.

        False, with nothing changed, if the session is known, or was deleted.
        """

    @abstractmethod
    async def delete(self, owner: str, session_id: str) -> bool: ...

    @abstractmethod
    async def list(
        self, owner: str, user: str, *, limit: int, after: str | None = None
    ) -> Page | None:
        """Return a page of a user's sessions, newest first; None if `after` is none of them."""

    def _earliest(self) -> float:
        return self._clock() - self._settings.ttl_s

    def _failed(self, error: Exception, problem: str) -> SessionStoreError:
        if self._on_failure is not None:
            self._on_failure()
        if self.problem is None:
            logger.error("the session store fails: %s: %.500r", problem, str(error))
        self.problem = problem
        return SessionStoreError(f"the session store fails: {problem}")

    def _worked(self) -> None:
        self.problem = None
        logger.info("the session store works again")


def _steady_clock() -> Callable[[], float]:
    """Return a clock that starts at the system's time and is monotonic from then on."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()
