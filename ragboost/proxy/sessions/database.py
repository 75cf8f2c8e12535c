"""The SQLite database of chat sessions: its schema, and the file that it is in.

Looks before it touches: a file of another program is neither changed nor opened with SQLite.
"""

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from ragboost.errors import ConfigError

_APPLICATION_ID = 0x52424353  # in the header of our files only
_SCHEMA_VERSION = 1
_SCHEMA = f"""
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL,
    created_at REAL NOT NULL,
    used_at REAL NOT NULL,
    num_turns INTEGER NOT NULL,
    user TEXT,
    model TEXT,
    system TEXT,
    metadata TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX sessions_by_user ON sessions (owner, user, created_at, id);
CREATE INDEX sessions_by_use ON sessions (used_at);
CREATE TABLE turns (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    turn BLOB NOT NULL,
    PRIMARY KEY (session_id, number)
);
-- Sessions that were deleted, so that no running turn brings them back.
CREATE TABLE deleted (id TEXT PRIMARY KEY, deleted_at REAL NOT NULL) WITHOUT ROWID;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION}
"""
_HEADER_BYTES = 100  # of an SQLite file, with these parts
_MAGIC = b"SQLite format 3\0"
_VERSION_AT, _APPLICATION_AT = 60, 68
_OWNER_ONLY = 0o600
# Of the reserve. SQLite lets its write-ahead log grow to 4 MB, usually.
_RESERVE_BYTES = 8 << 20
RESERVED_FOR_DELETIONS = 4 << 20


class RemovedFileError(OSError):
    """The database's file was removed or replaced while it was open."""


class DatabaseFile:
    """The place of a database on disk, with a reserve of space beside it.

    A full disk is noticed when a turn is to be stored whose answer has been sent, and a deletion
    writes to SQLite's write-ahead log before it frees anything: the reserve has room for both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._reserve = path.with_name(path.name + "-ragboost-reserve")
        self._identity: tuple[int, int] | None = None

    def open(self, *, timeout_s: float) -> sqlite3.Connection:
        """Open the database; a ConfigError refuses a file that is not one of ours."""
        self._refuse_others()
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, _OWNER_ONLY))
        connection = connect(str(self.path), timeout_s=timeout_s)
        try:
            # After the schema, so that the file itself says what it is. The mode stays with the
            # file: another process that is just writing to it will set it, or has done so.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._identity = self._find()
            with suppress(OSError):
                self.fill_reserve()
        except (sqlite3.Error, OSError):
            connection.close()
            raise
        return connection

    def check(self) -> None:
        """Raise RemovedFileError if what is written would be lost with this process."""
        if self._find() != self._identity:
            raise RemovedFileError(f"{self.path} was removed or replaced; restart the proxy")

    def fill_reserve(self) -> None:
        """Occupy the space that `shrink_reserve` frees; raise OSError if the disk is full."""
        size = self._reserve.stat().st_size if self._reserve.exists() else 0
        if size >= _RESERVE_BYTES:
            return
        try:
            with self._reserve.open("ab") as file:
                file.write(bytes(_RESERVE_BYTES - size))
        except OSError:
            self.shrink_reserve(size)
            raise

    def shrink_reserve(self, num_bytes: int) -> None:
        with suppress(FileNotFoundError):
            os.truncate(self._reserve, num_bytes)

    def _find(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_others(self) -> None:
        if not self.path.exists():
            return
        if not self.path.is_file():
            raise ConfigError(f"session.path: {self.path} is not a file")
        with self.path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
        if header and not (
            header.startswith(_MAGIC)
            and _number(header, _APPLICATION_AT) == _APPLICATION_ID
            and _number(header, _VERSION_AT) == _SCHEMA_VERSION
        ):
            raise ConfigError(
                f"session.path: {self.path} holds something else than the chat sessions of this "
                "version; choose another path"
            )


def connect(path: str, *, timeout_s: float) -> sqlite3.Connection:
    """Connect to a database at a path or in `:memory:`, and create its tables if it has none."""
    connection = sqlite3.connect(path, timeout=timeout_s, check_same_thread=False)
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        with connection:
            connection.execute("BEGIN IMMEDIATE")  # two processes may start at the same time
            if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _number(header: bytes, at: int) -> int:
    return int.from_bytes(header[at : at + 4], "big")
