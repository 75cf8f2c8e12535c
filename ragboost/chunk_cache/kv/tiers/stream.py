"""A chunk whose layers arrive one after the other, from a thread that reads them.

Knows a file and threads. Does not know tiers. A reader that wants a layer waits until it is there.
"""

import threading
from collections.abc import Sequence
from typing import overload

import torch

from ragboost.chunk_cache.kv.store import ChunkKV
from ragboost.chunk_cache.kv.tiers.codec import KV
from ragboost.chunk_cache.kv.tiers.files import ChunkFile
from ragboost.errors import ChunkLostError


class LayerStream(Sequence[KV]):
    """Layers of one file, in order; reading ahead of `read_next` waits.

    Args:
        file: to read; closed with the last layer, or with the first that cannot be read.
        device: where the tensors go.

    Attributes:
        chunk: the chunk with this object as its layers.
        error: why it could not be read; None: it could, so far.
        size_bytes: of the file.
    """

    def __init__(self, file: ChunkFile, device: torch.device) -> None:
        self._file = file
        self._num_layers = file.num_layers
        self._device = device
        self._layers: list[KV] = []
        self._changed = threading.Condition()
        self.error: Exception | None = None
        self.size_bytes = file.size_bytes
        self.chunk: ChunkKV = file.chunk(self)

    def __len__(self) -> int:
        return self._num_layers

    @overload
    def __getitem__(self, number: int) -> KV: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[KV]: ...
    def __getitem__(self, number: int | slice) -> KV | Sequence[KV]:
        """Return a layer, waiting for it.

        Raises:
            ChunkLostError: it could not be read, and will not come.
        """
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._num_layers))]
        wanted = range(self._num_layers)[number]
        if not self.wait(wanted + 1):
            raise ChunkLostError(f"layer {wanted} of a stored chunk is lost: {self.error}")
        return self._layers[wanted]

    @property
    def num_read(self) -> int:
        """Layers that are there."""
        return len(self._layers)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self.error is not None or self.num_read == self._num_layers

    def wait(self, num_layers: int, *, timeout_s: float | None = None) -> bool:
        """Wait for the first layers; False: they did not come in time, or will not."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.is_done or len(self._layers) >= num_layers, timeout=timeout_s
            )
            return len(self._layers) >= num_layers

    def read_next(self) -> None:
        """Read one more layer, in the loader's thread.

        Raises:
            ChunkCacheError: it is not what was written.
            OSError: it cannot be read.
        """
        keys, values = self._file.read_layer(self.num_read)
        layer = keys.to(self._device), values.to(self._device)
        with self._changed:
            self._layers.append(layer)
            self._changed.notify_all()
        if self.num_read == self._num_layers:
            self._file.close()

    def fail(self, error: Exception) -> None:
        """Give up: whoever waits for a layer gets an error."""
        self._file.close()
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def whole(self) -> ChunkKV:
        """Return the chunk with its layers in memory; all must have been read."""
        return self._file.chunk(tuple(self._layers))
