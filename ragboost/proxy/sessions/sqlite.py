"""Chat sessions in SQLite: in this process's memory, or in a file that survives restarts and may be
shared by processes.

One connection in one worker thread, so that neither locks nor disks block the event loop.
"""

import asyncio
import errno
import json
import sqlite3
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from ragboost.config import SessionSettings
from ragboost.errors import ConfigError
from ragboost.proxy.sessions.database import RESERVED_FOR_DELETIONS, DatabaseFile, connect
from ragboost.proxy.sessions.store import ChatSession, ChatSessionStore, Page, Transcript

_COLUMNS = "id, owner, created_at, used_at, num_turns, user, model, system, metadata"
_BUSY_TIMEOUT_S = 5.0
_CHECK_TIMEOUT_S = 0.5  # whoever holds the file for longer would hold up the end of a turn
_BUSY_TIMEOUT_AFTER_FAILURE_S = 0.05  # all sessions wait for the one thread
_CHECKED_BYTES = 65536

T = TypeVar("T")


class _DatabaseStore(ChatSessionStore):
    async def open(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="ragboost-sessions")
        self._connection = await self._in_thread(self._connect)

    async def close(self) -> None:
        await self._in_thread(self._connection.close)
        self._executor.shutdown()

    async def create(self, session: ChatSession) -> None:
        await self._write(lambda: self._create(session))

    async def read(self, owner: str, session_id: str) -> Transcript | None:
        return await self._run(lambda: self._read(owner, session_id))

    async def append(self, session: ChatSession, turn: bytes) -> bool:
        return await self._write(lambda: self._append(session, turn))

    async def restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        return await self._write(lambda: self._restore(session, turns))

    async def delete(self, owner: str, session_id: str) -> bool:
        return await self._change(lambda: self._delete(owner, session_id))

    async def list(
        self, owner: str, user: str, *, limit: int, after: str | None = None
    ) -> Page | None:
        return await self._run(lambda: self._list(owner, user, limit=limit, after=after))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def _run(self, work: Callable[[], T], *, wait_s: float | None = None) -> T:
        """Do something in the thread, where it waits so long for another process's lock."""
        seconds = _BUSY_TIMEOUT_S if wait_s is None else wait_s
        if self.problem is not None:
            seconds = _BUSY_TIMEOUT_AFTER_FAILURE_S

        def patiently() -> T:
            self._connection.execute(f"PRAGMA busy_timeout = {round(seconds * 1000)}")
            return work()

        try:
            return await self._in_thread(patiently)
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error, f"SQLite: {_kind(error)}") from error

    async def _change(self, work: Callable[[], T], *, wait_s: float | None = None) -> T:
        def on_disk() -> T:
            self._check_file()
            return work()

        return await self._run(on_disk, wait_s=wait_s)

    async def _write(self, work: Callable[[], T], *, wait_s: float | None = None) -> T:
        """Change something in a way that shows that the store works."""
        result = await self._change(work, wait_s=wait_s)
        if self.problem is not None:
            self._worked()
        return result

    @abstractmethod
    def _connect(self) -> sqlite3.Connection: ...

    def _check_file(self) -> None:
        """Raise OSError if what is written would not be found again."""

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
            session.user,
            session.model,
            session.system,
            json.dumps(dict(session.metadata)),
        )
        connection.execute(
            f"INSERT INTO sessions ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values
        )
        connection.execute("DELETE FROM sessions WHERE used_at < ?", (self._earliest(),))
        total = connection.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
        self._evict(connection, total - self._settings.max_sessions, keep=session.id)

    def _evict(self, connection: sqlite3.Connection, num: int, *, keep: str) -> None:
        """Drop so many sessions, the least recently used first, and more if there are too many
        bytes, but not the one to keep."""
        oldest = "SELECT id FROM sessions WHERE id != ? ORDER BY used_at LIMIT ?"
        has_more = True
        while has_more and (num > 0 or _num_bytes(connection) > self._max_bytes):
            dropped = connection.execute(
                f"DELETE FROM sessions WHERE id IN ({oldest})", (keep, max(num, 1))
            )
            has_more, num = dropped.rowcount > 0, 0

    def _get(self, owner: str, session_id: str) -> ChatSession | None:
        row = self._connection.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE id = ? AND owner = ? AND used_at >= ?",
            (session_id, owner, self._earliest()),
        ).fetchone()
        return _session(row) if row else None

    def _read(self, owner: str, session_id: str) -> Transcript | None:
        query = "SELECT turn FROM turns WHERE session_id = ? ORDER BY number"
        with self._connection as connection:
            connection.execute("BEGIN")  # other processes may add a turn
            session = self._get(owner, session_id)
            rows = connection.execute(query, (session_id,)).fetchall() if session else []
        return Transcript(session, [bytes(turn) for (turn,) in rows]) if session else None

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
            self._evict(connection, 0, keep=session.id)
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
            self._evict(connection, 0, keep=session.id)
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

    def _list(self, owner: str, user: str, *, limit: int, after: str | None) -> Page | None:
        where: str = "owner = ? AND user = ? AND used_at >= ?"
        values: list[Any] = [owner, user, self._earliest()]
        if after is not None:
            before = self._get(owner, after)
            if before is None or before.user != user:
                return None
            where += " AND (created_at, id) < (?, ?)"
            values += [before.created_at, before.id]
        rows = self._connection.execute(
            f"SELECT {_COLUMNS} FROM sessions WHERE {where} "
            "ORDER BY created_at DESC, id DESC LIMIT ?",
            (*values, limit + 1),
        ).fetchall()
        return Page([_session(row) for row in rows[:limit]], len(rows) > limit)


class MemoryStore(_DatabaseStore):
    """Sessions that are lost when the process ends."""

    is_shared = False

    async def check(self) -> None: ...

    def _connect(self) -> sqlite3.Connection:
        return connect(":memory:", timeout_s=_BUSY_TIMEOUT_S)


class SqliteStore(_DatabaseStore):
    """Sessions in the file `session.path`."""

    is_shared = True
    is_on_disk = True

    def __init__(self, settings: SessionSettings, **options: Any) -> None:
        super().__init__(settings, **options)
        self._file = DatabaseFile(settings.path)

    async def open(self) -> None:
        try:
            await super().open()
        except (sqlite3.Error, OSError, ConfigError) as error:
            self._executor.shutdown()
            raise ConfigError(
                f"session.path: cannot use {self._settings.path} as an SQLite file: {error}"
            ) from error

    async def check(self) -> None:
        await self._write(self._probe, wait_s=_CHECK_TIMEOUT_S)

    def _connect(self) -> sqlite3.Connection:
        connection = self._file.open(timeout_s=_BUSY_TIMEOUT_S)
        with connection:  # written before the system's clock was set back
            now = self._clock()
            connection.execute("UPDATE sessions SET used_at = ? WHERE used_at > ?", (now, now))
        return connection

    def _check_file(self) -> None:
        self._file.check()

    def _probe(self) -> None:
        """Raise the error of a database that cannot be written to."""
        with self._connection as connection:
            connection.execute("BEGIN IMMEDIATE")  # another process may have locked it
            connection.rollback()
        if self.problem is not None:  # it may be full
            connection.execute(f"CREATE TABLE space AS SELECT zeroblob({_CHECKED_BYTES})")
            connection.execute("DROP TABLE space")
        self._file.fill_reserve()

    def _append(self, session: ChatSession, turn: bytes) -> bool:
        append = partial(super()._append, session, turn)
        return self._do_if_full(append, leave=RESERVED_FOR_DELETIONS)

    def _restore(self, session: ChatSession, turns: Sequence[bytes]) -> bool:
        restore = partial(super()._restore, session, turns)
        return self._do_if_full(restore, leave=RESERVED_FOR_DELETIONS)

    def _delete(self, owner: str, session_id: str) -> bool:
        return self._do_if_full(partial(super()._delete, owner, session_id), leave=0)

    def _do_if_full(self, work: Callable[[], bool], *, leave: int) -> bool:
        """Do what must not fail because the disk is full, in the reserve beyond so many bytes."""
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
                raise
        self._file.shrink_reserve(leave)
        # Overwriting what is deleted would need as much space again.
        self._connection.execute("PRAGMA secure_delete = FAST")
        is_done = work()
        with suppress(sqlite3.OperationalError):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return is_done


def _session(row: tuple[Any, ...]) -> ChatSession:
    fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
    return ChatSession(**{**fields, "metadata": json.loads(fields["metadata"])})


def _kind(error: sqlite3.Error | OSError) -> str:
    name = getattr(error, "sqlite_errorname", None)
    if name is None and isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or 0)
    return name or type(error).__name__


def _num_bytes(connection: sqlite3.Connection) -> int:
    """Return the size of what is stored, in whole pages of the database."""
    query = (
        "SELECT (page_count - freelist_count) * page_size "
        "FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
    )
    return int(connection.execute(query).fetchone()[0])
