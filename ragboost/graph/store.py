"""A graph of triplets in SQLite, in memory or in a file, which finds the edges of an entity in
microseconds; docs/lab/graph.md compares others."""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from ragboost.errors import RequestError
from ragboost.graph.triplets import Triplet, as_triplet

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entity (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, folded TEXT);
CREATE INDEX IF NOT EXISTS entity_folded ON entity (folded);
CREATE TABLE IF NOT EXISTS edge (
    head INTEGER NOT NULL, relation TEXT NOT NULL, tail INTEGER NOT NULL,
    UNIQUE (head, relation, tail)
);
"""


class GraphStore:
    """A set of triplets in a file, or in memory. Thread-safe."""

    def __init__(self, path: Path | str | None = None) -> None:
        self._lock = threading.Lock()
        name = ":memory:" if path is None else str(path)
        try:
            self._db = sqlite3.connect(name, check_same_thread=False)
            self._db.executescript(_SCHEMA)
        except sqlite3.DatabaseError as error:
            raise RequestError(f"cannot open the graph {name}: {error}", param="path") from None

    def __enter__(self) -> "GraphStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def add(self, triplets: Iterable[tuple[str, str, str]]) -> int:
        """Store triplets, all or none, and return the number of new ones."""
        new = [as_triplet(t, where=f"triplets[{i}]") for i, t in enumerate(triplets)]
        names = dict.fromkeys(name for t in new for name in (t.head, t.tail))
        with self._lock, self._db:
            before = self._count()
            self._db.executemany(
                "INSERT OR IGNORE INTO entity (name, folded) VALUES (?, ?)",
                ((name, name.casefold()) for name in names),
            )
            self._db.executemany(
                "INSERT OR IGNORE INTO edge SELECT h.id, ?, t.id FROM entity h, entity t "
                "WHERE h.name = ? AND t.name = ?",
                ((t.relation, t.head, t.tail) for t in new),
            )
            return self._count() - before

    def edges_from(self, entity: str, *, limit: int = -1) -> list[Triplet]:
        """Return at most `limit` triplets with this head, in insertion order; all if negative."""
        return self._triplets("WHERE h.name = ? ORDER BY e.rowid LIMIT ?", (entity, limit))

    def find(self, name: str) -> str | None:
        """Return the stored spelling of an entity's name, ignoring case."""
        rows = self._rows(
            "SELECT name FROM entity WHERE folded = ? ORDER BY name <> ?, id LIMIT 1",
            (name.casefold(), name),
        )
        return rows[0][0] if rows else None

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    def __iter__(self) -> Iterator[Triplet]:
        return iter(self._triplets("ORDER BY e.rowid"))

    def _triplets(self, clauses: str, values: tuple[object, ...] = ()) -> list[Triplet]:
        query = (
            "SELECT h.name, e.relation, t.name FROM edge e JOIN entity h ON h.id = e.head "
            f"JOIN entity t ON t.id = e.tail {clauses}"
        )
        return [Triplet(*row) for row in self._rows(query, values)]

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[str, ...]]:
        with self._lock:
            return self._db.execute(query, values).fetchall()

    def _count(self) -> int:
        count: int = self._db.execute("SELECT count(*) FROM edge").fetchone()[0]
        return count
