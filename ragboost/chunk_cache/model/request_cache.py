"""The KV cache of one request: a transformers cache that can be written at scattered positions. A
token's slot is its position, unless `RequestCache.positions` says otherwise."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer


class RequestLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """A layer whose `update` writes to given slots inside `RequestCache.writing`."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        super().__init__()
        self.keys, self.values = keys, values  # (1, kv heads, tokens, head_dim)
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self.rows: torch.Tensor | None = None

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
    def __init__(self, layers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self.layers = [RequestLayer(keys, values) for keys, values in layers]
        # Position that the keys of each slot are rotated to, (tokens,); None: the slot.
        self.positions: torch.Tensor | None = None

    @contextmanager
    def writing(self, rows: torch.Tensor) -> Iterator[None]:
        """Write the KV of the following forward pass to the slots `rows`, (tokens,)."""
        for layer in self.layers:
            layer.rows = rows
        try:
            yield
        finally:
            for layer in self.layers:
                layer.rows = None

    def clone(self) -> "RequestCache":
        copy = RequestCache([(layer.keys.clone(), layer.values.clone()) for layer in self.layers])
        copy.positions = self.positions
        return copy
