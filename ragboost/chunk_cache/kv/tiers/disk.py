"""A directory of chunk files, bounded in bytes, shared by any number of processes.

A file appears whole, by renaming, and never changes. A file's modification time is its rank: the
time at which its heat times recompute cost per byte will have faded to 1, so that the order needs
neither a clock nor an index, and survives restarts. Knows files. Does not know memory or models.
"""

import fcntl
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from ragboost.chunk_cache.eviction.heat import TAU_S
from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.kv.tiers.codec import check_codec
from ragboost.chunk_cache.kv.tiers.files import ChunkFile, encode
from ragboost.errors import ChunkCacheError

logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_UNFINISHED = ".unfinished"
_KEPT_SHARE = 0.95  # after an eviction, so that not every file that comes reads the directory


class _Found(NamedTuple):
    rank: float
    size_bytes: int
    path: Path


class DiskTier:
    """See the module. Safe to use from several threads and processes.

    Args:
        directory: made where it does not exist; nothing else may be kept in it.
        capacity_bytes: of all files together, those of other processes too.
        codec: how KV is stored, see `CODECS`; files of other codecs are read all the same.
        tau_s: seconds in which heat halves.
        clock: seconds since the epoch.

    Attributes:
        num_refused: files that were found broken or foreign, and removed.
        num_failed: writes that the system refused, such as on a full disk.

    Raises:
        ChunkCacheError: an unknown codec, a bad capacity, a directory that cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        *,
        capacity_bytes: int,
        codec: str = "plain",
        tau_s: float = TAU_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.directory = directory
        self.capacity_bytes = capacity_bytes
        self.num_refused = 0
        self.num_failed = 0
        self._codec = check_codec(codec)
        self._tau_s, self._clock = tau_s, clock
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with self._locked() as books:
                books.total = sum(found.size_bytes for found in self._scan())
        except OSError as error:
            raise ChunkCacheError(f"{directory} cannot hold chunk files: {error}") from error

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def __len__(self) -> int:
        return sum(1 for _ in self.directory.glob(f"*{_SUFFIX}"))

    @property
    def size_bytes(self) -> int:
        """Bytes of all files, unfinished ones too."""
        with self._locked():
            return sum(found.size_bytes for found in self._scan())

    def open(self, key: str) -> ChunkFile | None:
        """Return the file of a chunk, and mark it as used; None: there is none that can be used.
        One that is broken or foreign is removed."""
        try:
            file = ChunkFile(self._path(key), key)
        except FileNotFoundError:
            return None
        except (ChunkCacheError, OSError) as error:
            self.refuse(key, error)
            return None
        self._touch(file)
        return file

    def load(self, key: str) -> ChunkKV | None:
        """Read a chunk; None: there is none that can be used."""
        file = self.open(key)
        if file is None:
            return None
        with file:
            try:
                return file.read()
            except (ChunkCacheError, OSError) as error:
                self.refuse(key, error)
                return None

    def refuse(self, key: str, reason: Exception) -> None:
        """Remove a file that cannot be used, and say why."""
        logger.warning("chunk file removed, its KV is computed again: %s", reason)
        self.num_refused += 1
        self.remove(key)

    def remove(self, key: str) -> None:
        """Drop a chunk. One that is being read stays readable. Absent ones are ignored."""
        try:
            self._path(key).unlink(missing_ok=True)
        except OSError as error:  # a directory that is read-only now: the file is refused again
            logger.warning("chunk file %s cannot be removed: %s", key, error)

    def save(self, key: str, chunk: ChunkKV) -> bool:
        """Store a chunk in the place of what is there under its key, evicting what is worth least.

        Returns:
            False: it is larger than the tier, or the system refused to write it (a full disk, a
            quota); nothing has changed then.
        """
        data = encode(key, chunk, codec=self._codec)
        if len(data) > self.capacity_bytes:
            return False
        try:
            self._write(
                key,
                data,
                rank=self._rank(1.0, _worth(chunk.compute_s, len(chunk.tokens), len(data))),
            )
        except OSError as error:
            self.num_failed += 1
            logger.warning("chunk %s is not kept on disk: %s", key, error)
            return False
        return True

    def clear(self) -> None:
        """Drop everything."""
        with self._locked() as books:
            for found in self._scan():
                found.path.unlink(missing_ok=True)
            books.total = 0

    def _write(self, key: str, data: bytes, *, rank: float) -> None:
        path = self.directory / f"{uuid.uuid4().hex}{_UNFINISHED}"
        with self._locked() as books:
            self._make_room(books, len(data))
            file = path.open("xb", buffering=0)
            # Held until the file is renamed or its writer dies: see _is_abandoned. It has its full
            # size from the beginning, so that others count it, and a full disk shows at once.
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                os.posix_fallocate(file.fileno(), 0, len(data))
            except OSError:
                file.close()
                path.unlink()
                raise
        with ExitStack() as on_failure:
            on_failure.callback(path.unlink, missing_ok=True)
            with file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) or 0 :]
                os.utime(file.fileno(), (self._clock(), rank))
                os.fdatasync(file.fileno())  # before the name: a file is whole once it has one
                with self._locked():  # so that nobody who counts meets the file twice
                    path.rename(self._path(key))
            on_failure.pop_all()

    def _make_room(self, books: "_Books", size: int) -> None:
        total = books.total
        if total is None:  # unreadable: count again
            total = self.capacity_bytes
        if total + size > self.capacity_bytes:
            kept = sorted(self._scan())
            total = sum(found.size_bytes for found in kept)
            goal = max(0, int(_KEPT_SHARE * self.capacity_bytes) - size)
            for found in kept:
                if total <= goal or found.rank == math.inf:
                    break
                found.path.unlink(missing_ok=True)
                total -= found.size_bytes
            if total + size > self.capacity_bytes:
                raise OSError("other processes are writing as much as fits")
        # Reserved now: until the next scan the books never say less than there is.
        books.total = total + size

    def _scan(self) -> Iterator[_Found]:
        """All files; those that are being written rank last. Abandoned ones are removed. Call it
        with the lock held."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                path = Path(entry.path)
                try:
                    if entry.name.endswith(_SUFFIX):
                        status = entry.stat()
                        yield _Found(status.st_mtime, status.st_size, path)
                    elif entry.name.endswith(_UNFINISHED):
                        if _is_abandoned(path):
                            path.unlink(missing_ok=True)
                        else:
                            yield _Found(math.inf, entry.stat().st_size, path)
                except FileNotFoundError:
                    continue

    def _touch(self, file: ChunkFile) -> None:
        worth = _worth(file.compute_s, file.num_tokens, file.size_bytes)
        now = self._clock()
        old = os.fstat(file.fileno()).st_mtime
        heat = math.exp2(min(64.0, (old - self._rank(1.0, worth)) / self._tau_s))
        try:
            os.utime(file.fileno(), (now, self._rank(heat + 1, worth)))
        except OSError as error:  # a file of another user: it may be read, and ranks as it did
            logger.debug("the rank of a chunk file stays: %s", error)

    def _rank(self, heat: float, worth: float) -> float:
        """The time at which heat * worth has faded to 1 ns of computing per byte."""
        return self._clock() + self._tau_s * math.log2(heat * max(worth * 1e9, 1e-6))

    def _path(self, key: str) -> Path:
        return self.directory / f"{key}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator["_Books"]:
        """One process and thread at a time; the system lets go of the lock when a process dies."""
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _Books(descriptor)
        finally:
            os.close(descriptor)


class _Books:
    """The bytes that all processes have reserved, kept in the lock file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def total(self) -> int | None:
        """Bytes; None where the file says something else."""
        text = os.pread(self._descriptor, 32, 0)
        return int(text) if text.isdigit() else None

    @total.setter
    def total(self, value: int) -> None:
        # One write of fixed length, so that a crash leaves the old number or the new one.
        os.pwrite(self._descriptor, f"{value:020d}".encode(), 0)


def _worth(compute_s: float | None, num_tokens: int, size_bytes: int) -> float:
    """Seconds of computing per byte; where they were not measured, 1 ms a token is assumed."""
    return (num_tokens * 1e-3 if compute_s is None else compute_s) / size_bytes


def _is_abandoned(path: Path) -> bool:
    """Whether the writer of an unfinished file has died: it holds a lock while it lives."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
