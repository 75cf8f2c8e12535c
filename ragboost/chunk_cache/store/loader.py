"""Read chunk files in the background, the chunks of one request together and layer by layer.

All first layers are read before all second ones, so that a request can be computed while its later
layers load: one pass over the layers, where Cache-Craft's algorithm 2 reloads layers at each step.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.disk import DiskTier
from ragboost.chunk_cache.store.speeds import Speeds
from ragboost.chunk_cache.store.stream import LayerStream
from ragboost.errors import ChunkCacheError


class ChunkLoad:
    """The load of one chunk, queued or running.

    Attributes:
        key: key of the chunk.
        group: ascending number of the request that the chunk is loaded for.
        is_awaited: a request is blocked on the load, which therefore must not take longer than
            computing; False for a prefetch.
        is_cancelled: the result is not needed any more and is dropped.
    """

    def __init__(self, key: str, group: int, *, is_awaited: bool) -> None:
        self.key, self.group, self.is_awaited = key, group, is_awaited
        self.is_cancelled = False
        self._opened = threading.Event()
        self._stream: LayerStream | None = None

    @property
    def unread_bytes(self) -> int:
        """Bytes still to read; 0 until the file is open."""
        stream = self._stream
        if stream is None or stream.is_done:
            return 0
        return stream.size_bytes * (len(stream) - stream.num_read) // len(stream)

    @property
    def num_unread_tokens(self) -> int:
        """Tokens to compute if the load were abandoned; 0 once it is complete."""
        stream = self._stream
        return 0 if stream is None or stream.is_done else len(stream.chunk.tokens)

    def opened(self, stream: LayerStream | None) -> None:
        """Set the open file; None if there is none, or if loading it is not worthwhile."""
        self._stream = stream
        self._opened.set()

    def stream(self) -> LayerStream | None:
        """Wait until the file is open and return its stream, see `opened`."""
        self._opened.wait()
        return self._stream

    def chunk(self) -> ChunkKV | None:
        """Wait for the whole chunk and return it; None if it cannot be loaded."""
        stream = self.stream()
        return stream.whole() if stream is not None and stream.wait(len(stream)) else None


class Loader:
    """Two loading threads, so that a long load does not block a request that waits for a short one.

    Args:
        disk: the directory of the files.
        device: device of the loaded tensors.
        speeds: records every load, and decides whether one is worthwhile.
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
        streams: dict[ChunkLoad, LayerStream] = {}
        try:
            for load in loads:
                stream = self._open(load)
                if stream is None:
                    self._done(load, None)
                else:
                    streams[load] = stream
                load.opened(stream)
            self._read(dict(streams))
        finally:  # whatever happens, no request may wait forever
            for load in loads:
                load.opened(streams.get(load))
            for stream in streams.values():
                if not stream.is_done:
                    stream.fail(ChunkCacheError("the loader has stopped"))

    def _read(self, streams: dict[ChunkLoad, LayerStream]) -> None:
        # The chunks are read alternately, so only the time of all of them together is meaningful.
        begin, num_bytes = time.perf_counter(), 0
        while streams:
            for load, stream in list(streams.items()):
                self._read_layer(load, stream)
                if stream.error is None:
                    num_bytes += stream.size_bytes // len(stream)
                if stream.is_done:
                    del streams[load]
        if num_bytes:
            self._speeds.loaded(num_bytes, time.perf_counter() - begin)

    def _read_layer(self, load: ChunkLoad, stream: LayerStream) -> None:
        """Read one layer. A corrupt file is removed before waiting requests learn of the error, so
        that a retry does not find it again."""
        if load.is_cancelled:
            self._done(load, None)
            stream.fail(ChunkCacheError("the load was cancelled"))
            return
        try:
            stream.read_next()
        except (ChunkCacheError, OSError) as error:
            self._disk.refuse(load.key, error)
            self._done(load, None)
            stream.fail(error)
            return
        if stream.is_done:
            self._done(load, stream.whole())

    def _open(self, load: ChunkLoad) -> LayerStream | None:
        file = None if load.is_cancelled else self._disk.open(load.key)
        if file is None:
            return None
        if load.is_awaited and not self._speeds.is_worth_loading(file.size_bytes, file.num_tokens):
            file.close()
            return None
        return LayerStream(file, self._device)
