"""Chat sessions in an SQLite file, which survives restarts and may be shared by processes.

One connection in one worker thread, so that neither locks nor disks block the event loop.
"""

import asyncio
import json
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ragboost.errors import ConfigError, SessionStoreError
from ragboost.sessions.store import ChatSession, ChatSessionStore, Page

logger = logging.getLogger(__name__)

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
# Sessions that were deleted, so that no running turn brings them back. Other versions ignore it.
_SCHEMA_OF_DELETED = """
CREATE TABLE IF NOT EXISTS deleted (id TEXT PRIMARY KEY, deleted_at REAL NOT NULL) WITHOUT ROWID
"""
_COLUMNS = "id, owner, created_at, used_at, num_turns, model, system, metadata"
_BUSY_TIMEOUT_S = 5.0
_BUSY_TIMEOUT_AFTER_FAILURE_S = 0.05  # all sessions wait for the one thread
_RETRY_S = 0.01
_CHECKED_BYTES = 65536
_NEARLY_FULL_BYTES = 64 * 1024 * 1024  # left on the disk: each turn begins with a write
_OWNER_ONLY = 0o600

T = TypeVar("T")


class SqliteStore(ChatSessionStore):
    is_shared = True
    is_on_disk = True

    async def open(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ragboost-sessions")
        try:
            self._connection = await self._in_thread(self._connect)
        except (sqlite3.Error, OSError) as error:
            self._executor.shutdown()
            raise ConfigError(
                f"session.path: cannot use {self._settings.path} as an SQLite file: {error}"
            ) from error

    async def close(self) -> None:
        await self._in_thread(self._connection.close)
        self._executor.shutdown()

    async def check(self) -> None:
        if self.problem is not None or await self._read(self._is_nearly_full):
            await self._write(self._allocate)

    async def create(self, session: ChatSession) -> None:
        await self._write(lambda: self._create(session))

    async def get(self, owner: str, session_id: str) -> ChatSession | None:
        return await self._read(lambda: self._get(owner, session_id))

    async def turns(self, session_id: str) -> list[bytes]:
        query = "SELECT turn FROM turns WHERE session_id = ? ORDER BY number"
        rows = await self._read(lambda: self._connection.execute(query, (session_id,)).fetchall())
        return [bytes(turn) for (turn,) in rows]

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        return await self._write(lambda: self._append(session, turn))

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        return await self._write(lambda: self._restore(session, turns))

    async def delete(self, owner: str, session_id: str) -> bool:
        return await self._write(lambda: self._delete(owner, session_id))

    async def list(self, owner: str, *, limit: int, after: str | None = None) -> Page | None:
        return await self._read(lambda: self._list(owner, limit, after))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _read(self, work: Callable[[], T]) -> T:
        try:
            return await self._in_thread(work)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    async def _write(self, work: Callable[[], T]) -> T:
        result = await self._read(work)
        if self.problem is not None:
            self._worked()
            await self._in_thread(lambda: self._wait_for_locks(_BUSY_TIMEOUT_S))
        return result

    def _failed(self, error: Exception) -> SessionStoreError:
        if self.problem is None:
            self._executor.submit(self._wait_for_locks, _BUSY_TIMEOUT_AFTER_FAILURE_S)
        return super()._failed(error)

    def _wait_for_locks(self, seconds: float) -> None:
        self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")

    def _is_nearly_full(self) -> bool:
        disk = os.statvfs(Path(self._settings.path).parent)
        return disk.f_bavail * disk.f_frsize < _NEARLY_FULL_BYTES

    def _allocate(self) -> None:
        self._connection.execute(
            f"CREATE TABLE IF NOT EXISTS space AS SELECT zeroblob({_CHECKED_BYTES}) AS bytes"
        )
        self._connection.execute("DROP TABLE IF EXISTS space")

    def _connect(self) -> sqlite3.Connection:
        _restrict(Path(self._settings.path))
        connection = sqlite3.connect(
            self._settings.path, timeout=_BUSY_TIMEOUT_S, check_same_thread=False
        )
        try:
            _set_up(connection)
            with connection:  # written before the system's clock was set back
                now = self._clock()
                connection.execute("UPDATE sessions SET used_at = ? WHERE used_at > ?", (now, now))
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _create(self, session: ChatSession) -> None:
        with self._connection as connection:
            connection.execute("DELETE FROM deleted WHERE id = ?", (session.id,))
            self._insert(connection, session)

    def _insert(self, connection: sqlite3.Connection, session: ChatSession) -> None:
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
        connection.execute(
            f"INSERT INTO sessions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values
        )
        connection.execute("DELETE FROM sessions WHERE used_at < ?", (self._earliest(),))
        total = connection.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
        connection.execute(
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id != ? "
            "ORDER BY used_at LIMIT ?)",
            (session.id, max(total - self._settings.max_sessions, 0)),
        )

    def _get(self, owner: str, session_id: str) -> ChatSession | None:
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND owner = ? AND used_at >= ?",
            (session_id, owner, self._earliest()),
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

    def _restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        query = (
            "SELECT 1 FROM sessions WHERE id = :id AND used_at >= :limit "
            "UNION ALL SELECT 1 FROM deleted WHERE id = :id"
        )
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")
            values = {"id": session.id, "limit": self._earliest()}
            if connection.execute(query, values).fetchone():
                return False
            connection.execute("DELETE FROM sessions WHERE id = ?", (session.id,))
            session = replace(session, num_turns=len(turns), used_at=self._clock())
            self._insert(connection, session)
            connection.executemany(
                "INSERT INTO turns (session_id, number, turn) VALUES (?, ?, ?)",
                [(session.id, number, turn) for number, turn in enumerate(turns, 1)],
            )
        return True

    def _delete(self, owner: str, session_id: str) -> bool:
        with self._connection as connection:
            deleted = connection.execute(
                "DELETE FROM sessions WHERE id = ? AND owner = ? AND used_at >= ?",
                (session_id, owner, self._earliest()),
            )
            if deleted.rowcount == 1:
                self._note_deleted(connection, session_id)
        return deleted.rowcount == 1

    def _note_deleted(self, connection: sqlite3.Connection, session_id: str) -> None:
        connection.execute("DELETE FROM deleted WHERE deleted_at < ?", (self._earliest(),))
        connection.execute(
            "INSERT OR REPLACE INTO deleted (id, deleted_at) VALUES (?, ?)",
            (session_id, self._clock()),
        )
        connection.execute(
            "DELETE FROM deleted WHERE id IN "
            "(SELECT id FROM deleted ORDER BY deleted_at DESC LIMIT -1 OFFSET ?)",
            (self._settings.max_sessions,),
        )

    def _list(self, owner: str, limit: int, after: str | None) -> Page | None:
        where, values = "owner = ? AND used_at >= ?", [owner, self._earliest()]
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


def _restrict(path: Path) -> None:
    """Create a database file that only its owner reads, or make an existing one so."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
    for file in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
        if not file.exists() or not stat.S_IMODE(file.stat().st_mode) & 0o077:
            continue
        try:
            file.chmod(_OWNER_ONLY)
            logger.warning("%s was accessible to other users; it is no longer", file)
        except PermissionError:
            logger.warning("%s is accessible to other users, and not ours to restrict", file)


def _set_up(connection: sqlite3.Connection) -> None:
    _use_write_ahead_log(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    with connection:
        connection.execute("BEGIN IMMEDIATE")  # two processes may start at the same time
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        if version in (0, _SCHEMA_VERSION):
            connection.execute(_SCHEMA_OF_DELETED)
    if version not in (0, _SCHEMA_VERSION):
        raise sqlite3.DatabaseError(f"its schema version is {version}, not {_SCHEMA_VERSION}")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Change the journal's mode, which fails at once while another process writes."""
    give_up_at = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                raise
        time.sleep(_RETRY_S)


def _session(row: tuple[Any, ...]) -> ChatSession:
    fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return ChatSession(**{**fields, "metadata": json.loads(fields["metadata"])})
