"""A directory of chunk files, bounded in bytes, shared by any number of processes. Files are
immutable and appear by renaming. A file's modification time is its rank for eviction: when its heat
times its recompute cost per byte will have decayed to 1 ns, which needs no clock or index."""

import fcntl
import logging
import math
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from ragboost.chunk_cache.eviction import TAU_S
from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.files import decode, encode
from ragboost.chunk_cache.store.keys import check_key
from ragboost.errors import ChunkCacheError

logger = logging.getLogger(__name__)

_SUFFIX = ".safetensors"
_UNFINISHED = ".unfinished"
_KEPT_SHARE = 0.95  # after an eviction, so that not every write scans the directory
_MAX_LEAD_S = 24 * 3600.0  # of a rank before the clock; beyond it another clock was wrong


class _Entry(NamedTuple):
    rank: float
    size_bytes: int
    path: Path


class DiskTier:
    """A bounded map from chunk keys to files, in a directory of its own. Safe to use from several
    threads and processes. Raises `ChunkCacheError` if the directory cannot be used."""

    def __init__(
        self,
        directory: Path,
        *,
        capacity_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if capacity_bytes < 1:
            raise ChunkCacheError(f"capacity_bytes must be at least 1, got {capacity_bytes}")
        self.directory = directory
        self.capacity_bytes = capacity_bytes
        self.num_refused = self.num_failed = 0  # invalid files; failed writes
        self.num_evicted = 0  # by this process
        self.recorded_bytes = 0  # of all processes, when this one looked last
        self._clock = clock
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with self._locked() as reserved:
                self.recorded_bytes = sum(entry.size_bytes for entry in self._scan())
                reserved.total = self.recorded_bytes
        except OSError as error:
            raise ChunkCacheError(f"{directory} cannot hold chunk files: {error}") from error

    def __contains__(self, key: str) -> bool:
        return self._path(key).is_file()

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        return [path.stem for path in self.directory.glob(f"*{_SUFFIX}")]

    @property
    def size_bytes(self) -> int:
        with self._locked():
            return sum(entry.size_bytes for entry in self._scan())

    def load(self, key: str) -> ChunkKV | None:
        """Return a chunk's KV and mark it as used. A corrupt or foreign file is removed."""
        path = self._path(key)
        try:
            content = _read(path)
            chunk = decode(content, key)
        except FileNotFoundError:
            return None
        except (ChunkCacheError, OSError) as error:
            logger.warning("removed a chunk file, its KV will be recomputed: %s", error)
            self.num_refused += 1
            with suppress(OSError):
                self.remove(key)
            return None
        self._touch(path, _cost_per_byte(chunk, len(content)))
        return chunk

    def remove(self, key: str) -> None:
        """Remove a chunk; raises `OSError`, as in a read-only directory. A file that is open stays
        readable."""
        path = self._path(key)
        try:
            with self._locked() as reserved:
                status = path.lstat()
                path.unlink()
                total = reserved.total
                if total is not None and stat.S_ISREG(status.st_mode):
                    reserved.total = self.recorded_bytes = max(0, total - status.st_size)
        except FileNotFoundError:
            return

    def save(self, key: str, chunk: ChunkKV) -> bool:
        """Write a chunk, evicting the lowest-ranked files; return False, with nothing changed, if
        it exceeds the capacity by itself or cannot be written."""
        data = encode(key, chunk)
        if len(data) > self.capacity_bytes:
            return False
        try:
            self._write(key, data, rank=self._rank(1.0, _cost_per_byte(chunk, len(data))))
        except OSError as error:
            self.num_failed += 1
            logger.warning("cannot write chunk %s to disk: %s", key, error)
            return False
        return True

    def clear(self) -> None:
        with suppress(FileNotFoundError), self._locked() as reserved:  # the directory may be gone
            for entry in self._scan():
                entry.path.unlink(missing_ok=True)
            reserved.total = self.recorded_bytes = 0

    def close(self) -> None: ...

    def _write(self, key: str, data: bytes, *, rank: float) -> None:
        path = self.directory / f"{uuid.uuid4().hex}{_UNFINISHED}"
        with self._locked() as reserved:
            self._make_room(reserved, len(data))
            file = path.open("xb", buffering=0)
            # Locked until the file is renamed or its writer dies, see _is_abandoned. It has its
            # full size from the start: other processes count it, and a full disk fails early.
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
                os.fdatasync(file.fileno())  # before the rename: a named file is complete
                with self._locked():  # so that no scan counts the file twice
                    path.rename(self._path(key))
            on_failure.pop_all()

    def _make_room(self, reserved: "_ReservedBytes", size: int) -> None:
        total = reserved.total
        if total is None:  # unreadable: scan
            total = self.capacity_bytes
        if total + size > self.capacity_bytes:
            entries = sorted(self._scan())
            total = sum(entry.size_bytes for entry in entries)
            goal = max(0, int(_KEPT_SHARE * self.capacity_bytes) - size)
            for entry in entries:
                if total <= goal or entry.rank == math.inf:
                    break
                entry.path.unlink(missing_ok=True)
                self.num_evicted += 1
                total -= entry.size_bytes
            if total + size > self.capacity_bytes:
                raise OSError("unfinished files of other processes fill the directory")
        # Until the next scan the recorded total is never below the actual one.
        reserved.total = self.recorded_bytes = total + size

    def _scan(self) -> Iterator[_Entry]:
        """Yield all files, unfinished ones with infinite rank. Requires the lock. Folders, pipes
        and links are not ours: they are left alone."""
        latest = self._clock() + _MAX_LEAD_S
        with os.scandir(self.directory) as files:
            for file in files:
                path = Path(file.path)
                try:
                    if not file.is_file(follow_symlinks=False):
                        continue
                    status = file.stat(follow_symlinks=False)
                    if file.name.endswith(_SUFFIX):
                        rank = status.st_mtime if status.st_mtime < latest else -math.inf
                        yield _Entry(rank, status.st_size, path)
                    elif file.name.endswith(_UNFINISHED):
                        if _is_abandoned(path):
                            path.unlink(missing_ok=True)
                        else:
                            yield _Entry(math.inf, status.st_size, path)
                except FileNotFoundError:
                    continue

    def _touch(self, path: Path, cost: float) -> None:
        try:
            heat = math.exp2(min(64.0, (path.stat().st_mtime - self._rank(1.0, cost)) / TAU_S))
            os.utime(path, (self._clock(), self._rank(heat + 1, cost)))
        except OSError as error:  # such as a readable file of another user
            logger.debug("cannot update the rank of a chunk file: %s", error)

    def _rank(self, heat: float, cost_per_byte: float) -> float:
        """Return the time at which heat * cost will have decayed to 1 ns per byte."""
        return self._clock() + TAU_S * math.log2(heat * max(cost_per_byte * 1e9, 1e-6))

    def _path(self, key: str) -> Path:
        return self.directory / f"{check_key(key)}{_SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator["_ReservedBytes"]:
        """Exclude other processes and threads; the system releases the lock when a process dies."""
        descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield _ReservedBytes(descriptor)
        finally:
            os.close(descriptor)


class _ReservedBytes:
    """The total bytes that all processes have reserved, stored in the lock file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @property
    def total(self) -> int | None:
        text = os.pread(self._descriptor, 32, 0)
        return int(text) if text.isdigit() else None

    @total.setter
    def total(self, value: int) -> None:
        # A single write of fixed length: a crash leaves the old number or the new one.
        os.pwrite(self._descriptor, f"{value:020d}".encode(), 0)


def _cost_per_byte(chunk: ChunkKV, size_bytes: int) -> float:
    seconds = len(chunk.tokens) * 1e-3 if chunk.compute_s is None else chunk.compute_s
    return seconds / size_bytes


def _read(path: Path) -> bytearray:
    # Without O_NONBLOCK, opening a named pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ChunkCacheError(f"{path.name} cannot be used: it is no regular file")
        content = bytearray(status.st_size)
        del content[file.readinto(content) :]
    return content


def _is_abandoned(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
