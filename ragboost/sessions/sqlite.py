"""Chat sessions in an SQLite file, which survives restarts and may be shared by processes.

One connection in one worker thread, so that neither locks nor disks block the event loop.
"""

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError
from ragboost.sessions.base import ChatSession, Page

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    num_turns INTEGER NOT NULL,
    model TEXT,
    system TEXT,
    metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_owner ON sessions (owner, created_at, id);
CREATE INDEX sessions_by_use ON sessions (used_at);
CREATE TABLE turns (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    turn BLOB NOT NULL,
    PRIMARY KEY (session_id, number)
);
"""
_COLUMNS = "id, owner, created_at, used_at, num_turns, model, system, metadata"
_BUSY_TIMEOUT_S = 10.0

T = TypeVar("T")


class SqliteStore:
    """A `ChatSessionStore` in an SQLite file.

    Args:
        settings: the file, bounds and expiry.
        clock: seconds since 1970.
    """

    def __init__(
        self, settings: SessionSettings, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._settings = settings
        self._clock = clock

    async def open(self) -> None:
        """Open the file; create it if it does not exist.

        Raises:
            ConfigError: it cannot be opened, or is not a session store of this version.
        """
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ragboost-sessions")
        try:
            self._connection = await self._run(self._connect)
        except sqlite3.Error as error:
            self._executor.shutdown()
            raise ConfigError(
                f"session.path: cannot use {self._settings.path} as an SQLite file: {error}"
            ) from error

    async def close(self) -> None:
        await self._run(self._connection.close)
        self._executor.shutdown()

    async def create(self, session: ChatSession) -> None:
        await self._run(lambda: self._create(session))

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        return await self._run(lambda: self._get(owner, session_id))

    async def turns(self, session_id: str) -> list[bytes]:
        query = "SELECT turn FROM turns WHERE session_id = ? ORDER BY number"
        rows = await self._run(lambda: self._connection.execute(query, (session_id,)).fetchall())
        return [bytes(turn) for (turn,) in rows]

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        return await self._run(lambda: self._append(session, turn))

    async def delete(self, owner: str, session_id: str) -> bool:
        return await self._run(lambda: self._delete(owner, session_id))

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        return await self._run(lambda: self._list(owner, limit, after))

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._settings.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        )
        try:
            _set_up(connection)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _create(self, session: ChatSession) -> None:
        values = (
            session.id,
            session.owner,
            session.created_at,
            session.used_at,
            session.num_turns,
            session.model,
            session.system,
            json.dumps(dict(session.metadata)),
        )
        with self._connection as connection:
            connection.execute(
                f"INSERT INTO sessions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values
            )
            connection.execute("DELETE FROM sessions WHERE used_at < ?", (self._limit(),))
            total = connection.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
            connection.execute(
                "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id != ? "
                "ORDER BY used_at LIMIT ?)",
                (session.id, max(total - self._settings.max_sessions, 0)),
            )

    def _get(self, owner: str, session_id: str) -> ChatSession | None:
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND owner = ? AND used_at >= ?",
            (session_id, owner, self._limit()),
        ).fetchone()
        return _session(row) if row else None

    def _append(self, session: ChatSession, turn: bytes) -> bool:
        with self._connection as connection:
            updated = connection.execute(
                "UPDATE sessions SET num_turns = num_turns + 1, used_at = ? "
                "WHERE id = ? AND owner = ? AND num_turns = ?",
                (self._clock(), session.id, session.owner, session.num_turns),
            )
            if updated.rowcount != 1:
                return False
            connection.execute(
                "INSERT INTO turns (session_id, number, turn) VALUES (?, ?, ?)",
                (session.id, session.num_turns + 1, turn),
            )
        return True

    def _delete(self, owner: str, session_id: str) -> bool:
        with self._connection as connection:
            deleted = connection.execute(
                "DELETE FROM sessions WHERE id = ? AND owner = ? AND used_at >= ?",
                (session_id, owner, self._limit()),
            )
        return deleted.rowcount == 1

    def _list(self, owner: str, limit: int, after: str | None) -> Page | None:
        where, values = "owner = ? AND used_at >= ?", [owner, self._limit()]
        if after is not None:
            before = self._get(owner, after)
            if before is None:
                return None
            where += " AND (created_at, id) < (?, ?)"
            values += [before.created_at, before.id]
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE {where} "
            "ORDER BY created_at DESC, id DESC LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return Page([_session(row) for row in rows[:limit]], len(rows) > limit)

    def _limit(self) -> float:
        return self._clock() - self._settings.ttl_s


def _set_up(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    with connection:
        connection.execute("BEGIN IMMEDIATE")  # two processes may start at the same time
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    if version not in (0, _SCHEMA_VERSION):
        raise sqlite3.DatabaseError(f"its schema version is {version}, not {_SCHEMA_VERSION}")


def _session(row: tuple[Any, ...]) -> ChatSession:
    fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return ChatSession(**{**fields, "metadata": json.loads(fields["metadata"])})
