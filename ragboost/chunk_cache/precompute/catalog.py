"""The catalog of prepared documents: a file beside the KV with the chunk of each document and the
recipe of its KV. Serves as the mapping from plain chunk keys to recipes."""

import hashlib
import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic_core import from_json

from ragboost.chunk_cache.store.influence import chunk_name
from ragboost.chunk_cache.store.keys import check_key
from ragboost.errors import ChunkCacheError

FILE = "catalog.jsonl"
RECIPE_VERSION = 1
"""Version of the preparation; changes when the same neighbours give different KV."""


def recipe_of(neighbours: Sequence[Sequence[int]]) -> str:
    """Return the identity of a preparation by its neighbours (16 hex digits); empty for none."""
    if not neighbours:
        return ""
    names = [chunk_name(tokens) for tokens in neighbours]
    return hashlib.sha256(json.dumps([RECIPE_VERSION, names]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class PreparedChunk:
    document: str  # identity in the corpus, independent of its text
    plain: str  # key of the chunk's plain KV
    recipe: str  # see `recipe_of`
    key: str  # key of the stored KV
    num_tokens: int  # tokens of the chunk
    size_bytes: int  # bytes of its KV


class ChunkCatalog(Mapping[str, str]):
    """The entries of a directory; as a mapping, recipes by plain key. One process writes, from any
    thread. Every change appends a line, and a truncated last one is ignored; opening compacts the
    file. Raises `ChunkCacheError` with the number of another line that is no entry."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._entries: dict[str, PreparedChunk] = {}
        self._recipes: dict[str, str] = {}
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            self._read()
        self._rewrite()

    @classmethod
    def read(cls, directory: Path) -> dict[str, str]:
        """Return the recipes of a directory without writing to it."""
        reader = cls.__new__(cls)
        reader._path, reader._entries, reader._recipes = directory / FILE, {}, {}
        if reader._path.exists():
            reader._read()
        return dict(reader._recipes)

    def __getitem__(self, plain: str) -> str:
        return self._recipes[plain]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._recipes))

    def __len__(self) -> int:
        return len(self._recipes)

    @property
    def documents(self) -> list[str]:
        return list(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of all stored KV; KV shared by several documents counts once."""
        return sum({entry.key: entry.size_bytes for entry in self._entries.values()}.values())

    def entry(self, document: str) -> PreparedChunk | None:
        return self._entries.get(document)

    def record(self, entry: PreparedChunk) -> None:
        self._append(asdict(entry))

    def forget(self, document: str) -> None:
        if document in self._entries:
            self._append({"document": document})

    def keeps(self, key: str) -> bool:
        return any(entry.key == key for entry in self._entries.values())

    def _append(self, line: Mapping[str, object]) -> None:
        with self._lock:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                file.flush()
                os.fsync(file.fileno())
            self._apply(dict(line))

    def _apply(self, line: dict[str, object]) -> None:
        document = str(line["document"])
        entry = _entry(line) if len(line) > 1 else None
        old = self._entries.pop(document, None)
        if old is not None and not any(e.plain == old.plain for e in self._entries.values()):
            self._recipes.pop(old.plain, None)
        if entry is not None:
            self._entries[document] = entry
            if entry.recipe:
                self._recipes[entry.plain] = entry.recipe

    def _read(self) -> None:
        lines = self._path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                self._apply(from_json(line))
            except (ValueError, TypeError, KeyError, ChunkCacheError) as error:
                if number == len(lines):  # without a newline: a crash truncated it
                    return
                raise ChunkCacheError(
                    f"{self._path}:{number} is not a catalog entry: {error}; remove the file to "
                    "prepare the corpus again"
                ) from None

    def _rewrite(self) -> None:
        unfinished = self._path.with_suffix(".new")
        with unfinished.open("w", encoding="utf-8") as file:
            for entry in self._entries.values():
                file.write(json.dumps(asdict(entry)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(self._path)


def _entry(line: dict[str, object]) -> PreparedChunk:
    entry = PreparedChunk(**line)  # type: ignore[arg-type]
    texts = (entry.document, entry.plain, entry.recipe, entry.key)
    numbers = (entry.num_tokens, entry.size_bytes)
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("document, plain, recipe and key must be texts")
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise TypeError("num_tokens and size_bytes must be numbers from 0 on")
    check_key(entry.plain)
    check_key(entry.key)
    return entry
