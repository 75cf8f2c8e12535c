"""A request's own KV cache: a transformers cache whose rows can be written at scattered positions.

A token's slot is its position, unless the cache says otherwise. Knows tensors; does not know where
they came from.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class RequestLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """A layer whose `update` writes into given rows while the cache is in a `writing` block, and
    appends like any dynamic layer otherwise. It can be filled when it is first looked at."""

    _fill: Callable[[], None] | None = None

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # (1, kv heads, tokens, head_dim)
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self.rows: torch.Tensor | None = None

    @property
    def keys(self) -> torch.Tensor:
        """(1, kv heads, tokens, head_dim)."""
        self._settle()
        return self._keys

    @keys.setter
    def keys(self, keys: torch.Tensor) -> None:
        self._keys = keys

    @property
    def values(self) -> torch.Tensor:
        """(1, kv heads, tokens, head_dim)."""
        self._settle()
        return self._values

    @values.setter
    def values(self, values: torch.Tensor) -> None:
        self._values = values

    def fill_later(self, fill: Callable[[], None]) -> None:
        """Call `fill` before the keys or values are next looked at, such as when the model comes to
        this layer. What it raises reaches whoever looks."""
        self._fill = fill

    def _settle(self) -> None:
        if self._fill is not None:
            fill, self._fill = self._fill, None
            fill()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.rows is None:
            keys, values = super().update(key_states, value_states)
            return keys, values
        self.keys.index_copy_(2, self.rows, key_states)
        self.values.index_copy_(2, self.rows, value_states)
        return self.keys, self.values


class RequestCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped
    """The KV of one prompt. The tensors belong to this request alone; decoding appends to them.

    Attributes:
        positions: that the keys of the slots are rotated to, (tokens,); None: slot and position are
            the same.
    """

    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.layers = [RequestLayer(keys, values) for keys, values in layers]
        self.positions: torch.Tensor | None = None

    @contextmanager
    def writing(self, rows: torch.Tensor) -> Iterator[None]:
        """Send what the model computes to the given rows, positions (tokens,) in the order of the
        input tokens."""
        for layer in self.layers:
            layer.rows = rows
        try:
            yield
        finally:
            for layer in self.layers:
                layer.rows = None

    def clone(self, *, num_layers: int | None = None) -> "RequestCache":
        """Return a copy of the first layers, or of all, that shares no memory."""
        layers = self.layers[:num_layers]
        copy = RequestCache([(layer.keys.clone(), layer.values.clone()) for layer in layers])
        copy.positions = self.positions
        return copy

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(layer.keys.nbytes + layer.values.nbytes for layer in self.layers)
