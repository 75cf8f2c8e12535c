"""Chunk KV in a store outside this machine, as the files that a disk holds. Values are named after
a generation that the store keeps: emptying it begins another, and if it is lost, all is, so that
nothing removed is ever found. Knows files and keys. Does not know a protocol."""

import logging
import math
import threading
import time
import uuid
from typing import Protocol

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.files import decode, encode
from ragboost.chunk_cache.store.keys import check_key
from ragboost.errors import ChunkCacheError, StoreUnavailableError

logger = logging.getLogger(__name__)

PREFIX = "ragboost-kv"
_GENERATION_S = 1.0  # age at which a generation is read again
_MAX_GENERATION_BYTES = 64


class RemoteDriver(Protocol):
    """The four verbs of a store of bytes, safe to use from several threads. Each may raise
    `StoreUnavailableError`, in a bounded time unless the store hangs."""

    max_bytes: int  # of a value

    def has(self, name: str) -> bool: ...

    def get(self, name: str, *, max_bytes: int) -> bytearray | None:
        """Return a value; None if there is none, or it is longer, and so not read."""
        ...

    def put(self, name: str, value: bytes) -> bool:
        """Replace a value, as a whole or not at all; return False if there is no room."""
        ...

    def remove(self, name: str) -> None:
        """Remove a value, unless the store refuses to. An absent one is no error."""
        ...

    def close(self) -> None: ...


class RemoteTier:
    def __init__(self, driver: RemoteDriver) -> None:
        self.num_refused = 0  # damaged or foreign values
        self._driver = driver
        self._lock = threading.Lock()
        self._generation, self._read_at = "", 0.0

    def __contains__(self, key: str) -> bool:
        return self._driver.has(self._name(key))

    def load(self, key: str) -> ChunkKV | None:
        name = self._name(key)
        value = self._driver.get(name, max_bytes=self._driver.max_bytes)
        if value is None:
            return None
        try:
            return decode(value, key)
        except ChunkCacheError as error:
            logger.warning("removed a stored chunk, its KV will be recomputed: %s", error)
            self.num_refused += 1
            self._driver.remove(name)
            return None

    def save(self, key: str, chunk: ChunkKV) -> bool:
        value = encode(key, chunk)
        return len(value) <= self._driver.max_bytes and self._driver.put(self._name(key), value)

    def remove(self, key: str) -> None:
        self._driver.remove(self._name(key))

    def clear(self) -> None:
        """Begin a new generation for all engines; the store evicts the old one's values in time."""
        with self._lock:
            self._generation = self._new_generation()
            self._read_at = -math.inf  # another rank may empty it, too: the store names the last

    def close(self) -> None:
        self._driver.close()

    def _name(self, key: str) -> str:
        return f"{PREFIX}:{self._current()}:{check_key(key)}"

    def _current(self) -> str:
        """Return the generation that the store names; a new one if it names none."""
        with self._lock:
            now = time.monotonic()
            if not self._generation or now - self._read_at > _GENERATION_S:
                name = f"{PREFIX}:generation"
                value = self._driver.get(name, max_bytes=_MAX_GENERATION_BYTES) or b""
                is_valid = value.isalnum() and value.isascii()
                self._generation = value.decode() if is_valid else self._new_generation()
                # Another process may begin one at the same moment: the store names the last.
                self._read_at = now if is_valid else -math.inf
            return self._generation

    def _new_generation(self) -> str:
        name = uuid.uuid4().hex
        if not self._driver.put(f"{PREFIX}:generation", name.encode()):
            raise StoreUnavailableError("the remote store has no room")
        return name
