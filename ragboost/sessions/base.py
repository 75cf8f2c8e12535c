"""The contract of a store of chat sessions.

Knows a session's attributes and its turns as bytes. Does not know messages, documents or HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class ChatSession:
    """A session without its turns.

    Attributes:
        id: its name, unique over all owners.
        owner: the user who may access it.
        created_at: seconds since 1970.
        used_at: time of its last turn, or of its creation; seconds since 1970.
        num_turns: number of its turns.
        model: the model of turns that name none, or None.
        system: its system prompt, or None.
        metadata: the caller's, unchanged.
    """

    id: str
    owner: str
    created_at: float
    used_at: float
    num_turns: int = 0
    model: str | None = None
    system: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


class Page(NamedTuple):
    """One page of a list of sessions; `has_more` if others follow."""

    sessions: Sequence[ChatSession]
    has_more: bool


class ChatSessionStore(Protocol):
    """Storage of sessions and their turns. Used by one event loop, between `open` and `close`.

    A session that has expired, or belongs to another owner, counts as unknown. The least recently
    used sessions are dropped beyond the bounds. No method blocks the event loop. A method that
    fails raises SessionStoreError and has changed nothing.

    Attributes:
        problem: the last failure; None if something was written since.
    """

    problem: str | None

    def now(self) -> float:
        """Return the time in seconds since 1970, steady while the system's clock is set."""

    async def open(self) -> None:
        """Open the store.

        Raises:
            ConfigError: the settings do not allow it.
        """

    async def close(self) -> None:
        """Release all resources."""

    async def check(self) -> None:
        """Raise SessionStoreError if a turn could not be stored now; free without a `problem`."""

    async def create(self, session: ChatSession) -> None:
        """Add a session without turns."""

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        """Return a session, or None if it is unknown."""

    async def turns(self, session_id: str) -> list[bytes]:
        """Return a session's turns, oldest first; empty for an unknown one."""

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        """Add a turn to a session as `get` returned it, which counts as use.

        Return False and change nothing if the session is unknown or has got another turn since.
        """

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        """Add a session that was dropped or has expired during a turn, which counts as use.

        Return False and change nothing if the session is known, or was deleted.

        Args:
            session: as `get` returned it before the turn.
            turns: all of its turns with the new one, oldest first.
        """

    async def delete(self, owner: str, session_id: str) -> bool:
        """Remove a session; return False if it is unknown."""

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        """Return a page of an owner's sessions, newest first; None if `after` is unknown.

        Args:
            owner: the owner.
            limit: sessions per page.
            after: id of the last session of the previous page; None: the first page.
        """
