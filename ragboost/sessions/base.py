"""What a store of chat sessions does.

Knows a session's head and its turns as bytes. Does not know messages, documents or HTTP.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class ChatSession:
    """The head of a session.

    Attributes:
        id: its name, unique over all owners.
        owner: who may see it.
        created_at: seconds since 1970.
        used_at: when its last turn was added, or it was created.
        num_turns: turns that it has.
        model: that its turns use unless they say otherwise, or None.
        system: its system prompt, or None.
        metadata: the caller's.
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
    """Part of a list of sessions, and whether more follow."""

    sessions: Sequence[ChatSession]
    has_more: bool


class ChatSessionStore(Protocol):
    """Sessions and their turns. Used by one event loop; `open` comes first, `close` last.

    A session that has expired, or belongs to another owner, is not there. The least recently used
    sessions go when there are too many. Nothing blocks the event loop.
    """

    async def open(self) -> None:
        """Make ready.

        Raises:
            ConfigError: the settings do not allow it.
        """

    async def close(self) -> None:
        """Let go of everything."""

    async def create(self, session: ChatSession) -> None:
        """Add a session without turns."""

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        """A session's head, or None."""

    async def turns(self, session_id: str) -> list[bytes]:
        """A session's turns, oldest first; empty for an unknown one."""

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        """Add a turn to a session as `get` returned it, and count it as used.

        False, and nothing has changed, if the session is gone or has got another turn meanwhile.
        """

    async def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session; False if it was not there."""

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        """An owner's sessions, newest first.

        Args:
            owner: whose.
            limit: at most so many.
            after: id of the session before the first one; None: from the start. An unknown one
                gives None.
        """
