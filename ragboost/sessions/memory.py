"""Chat sessions in this process, lost when it ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ragboost.bounded_map import BoundedMap
from ragboost.config import SessionSettings
from ragboost.sessions.store import ChatSession, ChatSessionStore, Page


@dataclass(slots=True)
class _Entry:
    session: ChatSession
    num_bytes: int  # of the turns, and characters of what the caller wrote into the session
    turns: list[bytes] = field(default_factory=list)


class MemoryStore(ChatSessionStore):
    is_shared = False

    def __init__(self, settings: SessionSettings, **options: Any) -> None:
        super().__init__(settings, **options)
        bounds: Any = {"max_entries": settings.max_sessions, "ttl_s": settings.ttl_s}
        self._entries: BoundedMap[str, _Entry] = BoundedMap(**bounds, clock=self._clock)
        self._deleted: BoundedMap[str, None] = BoundedMap(**bounds, clock=self._clock)

    @property
    def num_bytes(self) -> int:
        return self._entries.size

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def check(self) -> None: ...

    async def create(self, session: ChatSession) -> None:
        self._deleted.pop(session.id)
        self._put(_Entry(session, _num_characters(session)))

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        entry = self._find(owner, session_id)
        return entry.session if entry else None

    async def turns(self, session_id: str) -> list[bytes]:
        entry = self._entries.peek(session_id)
        return list(entry.turns) if entry else []

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        entry = self._find(session.owner, session.id)
        if entry is None or entry.session.num_turns != session.num_turns:
            return False
        entry.turns.append(turn)
        entry.num_bytes += len(turn)
        entry.session = replace(
            entry.session, num_turns=session.num_turns + 1, used_at=self._clock()
        )
        self._put(entry)
        return True

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        self._entries.expire()
        self._deleted.expire()
        if session.id in self._entries or session.id in self._deleted:
            return False
        session = replace(session, num_turns=len(turns), used_at=self._clock())
        size = _num_characters(session) + sum(map(len, turns))
        self._put(_Entry(session, size, list(turns)))
        return True

    async def delete(self, owner: str, session_id: str) -> bool:
        if self._find(owner, session_id) is None:
            return False
        self._deleted.put(session_id, None)
        self._entries.pop(session_id)
        return True

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        self._entries.expire()
        own = [entry.session for entry in self._entries.values() if entry.session.owner == owner]
        own.sort(key=lambda session: (session.created_at, session.id), reverse=True)
        if after is not None:
            ids = [session.id for session in own]
            if after not in ids:
                return None
            own = own[ids.index(after) + 1 :]
        return Page(own[:limit], len(own) > limit)

    def _find(self, owner: str, session_id: str) -> _Entry | None:
        self._entries.expire()
        entry = self._entries.peek(session_id)
        return entry if entry is not None and entry.session.owner == owner else None

    def _put(self, entry: _Entry) -> None:
        self._entries.put(entry.session.id, entry, size=entry.num_bytes)
        while self._entries.size > self._settings.max_bytes and len(self._entries) > 1:
            self._entries.pop(next(iter(self._entries)))


def _num_characters(session: ChatSession) -> int:
    texts = (session.model or "", session.system or "", *chain(*session.metadata.items()))
    return sum(map(len, texts))
