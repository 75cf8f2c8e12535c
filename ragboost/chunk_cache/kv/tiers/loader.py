"""Read chunk files in the background: the chunks of one request together, layer by layer.

All first layers come before all second ones, so that a request can be computed while its later
layers load: one moving frontier, where Cache-Craft's algorithm 2 loads layers again at each step.
Knows files and threads. Does not know memory tiers.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.kv.tiers.disk import DiskTier
from ragboost.chunk_cache.kv.tiers.speeds import Speeds
from ragboost.chunk_cache.kv.tiers.stream import LayerStream
from ragboost.errors import ChunkCacheError


class ChunkLoad:
    """A chunk that is being loaded, or will be.

    Attributes:
        key: of the chunk.
        group: number of the request that it was announced for; later ones have higher numbers.
        is_awaited: a request waits for it already, so that it must not take longer than computing;
            False: it was announced, and loads while the request waits for something else.
        is_cancelled: nobody wants it any more; what was read is dropped.
    """

    def __init__(self, key: str, group: int, *, is_awaited: bool) -> None:
        self.key, self.group, self.is_awaited = key, group, is_awaited
        self.is_cancelled = False
        self._opened = threading.Event()
        self._stream: LayerStream | None = None

    @property
    def unread_bytes(self) -> int:
        """What is still to come, as far as known: a file that is not open yet counts nothing."""
        stream = self._stream
        if stream is None or stream.is_done:
            return 0
        return stream.size_bytes * (len(stream) - stream.num_read) // len(stream)

    @property
    def num_unread_tokens(self) -> int:
        """Tokens that would have to be computed in its place; 0 once it is there."""
        stream = self._stream
        return 0 if stream is None or stream.is_done else len(stream.chunk.tokens)

    def opened(self, stream: LayerStream | None) -> None:
        """Called by the loader with the open file; None: there is none, or it is not worth it."""
        self._stream = stream
        self._opened.set()

    def stream(self) -> LayerStream | None:
        """Wait until the file is open; None: it will not come."""
        self._opened.wait()
        return self._stream

    def chunk(self) -> ChunkKV | None:
        """Wait for the whole chunk; None: it cannot be had."""
        stream = self.stream()
        return stream.whole() if stream is not None and stream.wait(len(stream)) else None


class Loader:
    """Two threads: one long load does not hold up a request that waits for a short one.

    Args:
        disk: where the files are.
        device: where tensors go.
        speeds: told of every load; asked whether one is worth it.
        done: called in a loader's thread with every load that has ended and its chunk, None where
            it failed.
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
        """ChunkLoad the chunks of one request. Returns at once."""
        self._threads.submit(self._run, loads)

    def close(self) -> None:
        """Wait for what was started, and end the threads."""
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
        finally:  # whatever happens, nobody waits for ever
            for load in loads:
                load.opened(streams.get(load))
            for stream in streams.values():
                if not stream.is_done:
                    stream.fail(ChunkCacheError("the loader has stopped"))

    def _read(self, streams: dict[ChunkLoad, LayerStream]) -> None:
        # Chunks are read in turns, so the time of one of them says nothing: all count together.
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
        """Read one layer. What is broken is removed before anybody hears of it: whoever starts
        again must not find it again."""
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
