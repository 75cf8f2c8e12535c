"""A chunk whose layers arrive one after the other from a reading thread."""

import threading
from collections.abc import Sequence
from typing import overload

import torch

from ragboost.chunk_cache.store.chunk import ChunkKV
from ragboost.chunk_cache.store.codec import KV
from ragboost.chunk_cache.store.files import ChunkFile
from ragboost.errors import ChunkLostError


class LayerStream(Sequence[KV]):
    """The layers of one file; access to a layer waits until it is loaded.

    Args:
        file: the file; closed after the last layer or the first error.
        device: device of the tensors.

    Attributes:
        chunk: the chunk with this stream as its layers.
        error: the error that ended the load; None if there was none.
        size_bytes: bytes of the file.
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
        """Wait for a layer and return it.

        Raises:
            ChunkLostError: it could not be read.
        """
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(self._num_layers))]
        wanted = range(self._num_layers)[number]
        if not self.wait(wanted + 1):
            raise ChunkLostError(f"layer {wanted} of a stored chunk cannot be read: {self.error}")
        return self._layers[wanted]

    @property
    def num_read(self) -> int:
        """Number of loaded layers."""
        return len(self._layers)

    @property
    def is_done(self) -> bool:
        """True once all layers are loaded or the load failed."""
        return self.error is not None or self.num_read == self._num_layers

    def wait(self, num_layers: int) -> bool:
        """Wait for the first `num_layers` layers. Returns False if the load failed before."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_done or len(self._layers) >= num_layers)
            return len(self._layers) >= num_layers

    def read_next(self) -> None:
        """Read one more layer. Called by the loader.

        Raises:
            ChunkCacheError: the layer is corrupt.
            OSError: the layer cannot be read.
        """
        keys, values = self._file.read_layer(self.num_read)
        layer = keys.to(self._device), values.to(self._device)
        with self._changed:
            self._layers.append(layer)
            self._changed.notify_all()
        if self.num_read == self._num_layers:
            self._file.close()

    def fail(self, error: Exception) -> None:
        """End the load; everyone who waits for a layer gets an error."""
        self._file.close()
        with self._changed:
            self.error = error
            self._changed.notify_all()

    def whole(self) -> ChunkKV:
        """Return the chunk with its layers in memory; all must have been read."""
        return self._file.chunk(tuple(self._layers))
