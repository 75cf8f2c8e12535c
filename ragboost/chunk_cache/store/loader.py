"""Read chunk files in the background, the chunks of one request together.

A request that waits for a load knows how much of it is left, and whether computing is faster.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.files import ChunkFile
from ragboost.chunk_cache.store.speeds import Speeds
from ragboost.errors import ChunkCacheError


class ChunkLoad:
    """The load of one chunk, queued or running.

    Args:
        group: ascending number of the request that the chunk is loaded for.
        is_awaited: a request is blocked on the load, which therefore must not take longer than
            computing; False for a prefetch.
    """

    def __init__(self, key: str, group: int, *, is_awaited: bool) -> None:
        self.key, self.group, self.is_awaited = key, group, is_awaited
        self.is_cancelled = False  # the result is not needed any more and is dropped
        self.num_read = 0  # layers
        self._file: ChunkFile | None = None
        self._chunk: ChunkKV | None = None
        self._has_opened, self._has_ended = threading.Event(), threading.Event()

    @property
    def unread_bytes(self) -> int:
        """Bytes still to read; 0 until the file is open."""
        file = self._file
        if file is None or self._has_ended.is_set():
            return 0
        return file.size_bytes * (file.num_layers - self.num_read) // file.num_layers

    @property
    def num_unread_tokens(self) -> int:
        """Tokens to compute if the load were abandoned; 0 once it is complete."""
        return 0 if self._file is None or self._has_ended.is_set() else self._file.num_tokens

    def open(self, file: ChunkFile) -> None:
        self._file = file
        self._has_opened.set()

    def end(self, chunk: ChunkKV | None) -> None:
        """End the load, unless it has ended; None: it failed, or is not worthwhile."""
        if not self._has_ended.is_set():
            self._chunk = chunk
            self._has_ended.set()
            self._has_opened.set()

    def has_opened(self) -> bool:
        """Wait until the file is open; return False if there is none to read."""
        self._has_opened.wait()
        return self._file is not None

    def chunk(self) -> ChunkKV | None:
        """Wait for the chunk and return it; None if it cannot be loaded."""
        self._has_ended.wait()
        return self._chunk


class Loader:
    """Two loading threads, so that a long load does not block a request that waits for a short one.

    Args:
        done: called in a loader thread for every finished load with its chunk, None if it failed.
    """

    def __init__(
        self,
        disk: DiskTier,
        device: torch.device,
        *,
        speeds: Speeds,
        done: Callable[[ChunkLoad, ChunkKV | None], None],
    ) -> None:
        self._disk, self._device, self._speeds, self._done = disk, device, speeds, done
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="ragboost-load")

    def start(self, loads: Sequence[ChunkLoad]) -> None:
        """Start loading the chunks of one request, without waiting."""
        self._threads.submit(self._run, loads)

    def close(self) -> None:
        """Wait for running loads and stop the threads."""
        self._threads.shutdown()

    def _run(self, loads: Sequence[ChunkLoad]) -> None:
        try:
            files = [(load, file) for load in loads if (file := self._open(load)) is not None]
            begin, num_bytes = time.perf_counter(), 0
            for load, file in files:
                with file:
                    chunk = self._read(load, file)
                self._end(load, chunk)
                num_bytes += 0 if chunk is None else file.size_bytes
            if num_bytes:  # only the time of all of them together is meaningful
                self._speeds.loaded(num_bytes, time.perf_counter() - begin)
        finally:  # whatever happens, no request may wait forever
            for load in loads:
                load.end(None)

    def _open(self, load: ChunkLoad) -> ChunkFile | None:
        file = None if load.is_cancelled else self._disk.open(load.key)
        if file is None:
            self._end(load, None)
        elif load.is_awaited and not self._speeds.is_worth_loading(
            file.size_bytes, file.num_tokens
        ):
            file.close()
            self._end(load, None)
            return None
        else:
            load.open(file)
        return file

    def _read(self, load: ChunkLoad, file: ChunkFile) -> ChunkKV | None:
        """Read a chunk. A corrupt file is removed before waiting requests learn of the error, so
        that they do not find it again."""
        layers = []
        try:
            for number in range(file.num_layers):
                if load.is_cancelled:
                    return None
                keys, values = file.read_layer(number)
                layers.append((keys.to(self._device), values.to(self._device)))
                load.num_read += 1
        except (ChunkCacheError, OSError) as error:
            self._disk.refuse(load.key, error)
            return None
        return file.chunk(tuple(layers))

    def _end(self, load: ChunkLoad, chunk: ChunkKV | None) -> None:
        self._done(load, chunk)
        load.end(chunk)
