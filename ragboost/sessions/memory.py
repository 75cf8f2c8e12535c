"""Chat sessions in this process: gone with it."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import chain

from ragboost.config import SessionSettings
from ragboost.sessions.base import ChatSession, Page


@dataclass(slots=True)
class _Entry:
    session: ChatSession
    turns: list[bytes] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Of the turns, and characters of what the caller wrote into the head."""
        head = (self.session.model or "", self.session.system or "")
        return sum(map(len, (*self.turns, *head, *chain(*self.session.metadata.items()))))


class MemoryStore:
    """See `ChatSessionStore`.

    Args:
        settings: bounds and expiry; all sessions but the newest have at most `max_bytes`.
        clock: seconds since 1970.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()  # by last use, oldest first
        self.num_bytes = 0

    async def open(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""

    async def create(self, session: ChatSession) -> None:
        """Add a session; drop others for it if need be."""
        self._entries[session.id] = entry = _Entry(session)
        self.num_bytes += entry.num_bytes
        self._shrink()

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        """A session's head, or None."""
        entry = self._find(owner, session_id)
        return entry.session if entry else None

    async def turns(self, session_id: str) -> list[bytes]:
        """A session's turns, oldest first."""
        entry = self._entries.get(session_id)
        return list(entry.turns) if entry else []

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        """Add a turn."""
        entry = self._find(session.owner, session.id)
        if entry is None or entry.session.num_turns != session.num_turns:
            return False
        entry.turns.append(turn)
        entry.session = replace(
            entry.session, num_turns=session.num_turns + 1, used_at=self._clock()
        )
        self.num_bytes += len(turn)
        self._entries.move_to_end(session.id)
        self._shrink()
        return True

    async def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session."""
        if self._find(owner, session_id) is None:
            return False
        self._drop(session_id)
        return True

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        """An owner's sessions, newest first."""
        self._expire()
        own = [entry.session for entry in self._entries.values() if entry.session.owner == owner]
        own.sort(key=lambda session: (session.created_at, session.id), reverse=True)
        if after is not None:
            ids = [session.id for session in own]
            if after not in ids:
                return None
            own = own[ids.index(after) + 1 :]
        return Page(own[:limit], len(own) > limit)

    def _find(self, owner: str, session_id: str) -> _Entry | None:
        self._expire()
        entry = self._entries.get(session_id)
        return entry if entry is not None and entry.session.owner == owner else None

    def _shrink(self) -> None:
        limits = self._settings
        while len(self._entries) > limits.max_sessions or (
            self.num_bytes > limits.max_bytes and len(self._entries) > 1
        ):
            self._drop(next(iter(self._entries)))

    def _expire(self) -> None:
        limit = self._clock() - self._settings.ttl_s
        while self._entries and next(iter(self._entries.values())).session.used_at < limit:
            self._drop(next(iter(self._entries)))

    def _drop(self, session_id: str) -> None:
        self.num_bytes -= self._entries.pop(session_id).num_bytes
