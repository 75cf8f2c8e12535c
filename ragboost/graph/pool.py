"""A pool of KV rows for a fixed number of tokens, on the model's device. Does not know which token
is stored in which row."""

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import KeyRotation


class TokenPool:
    """Rows of KV, each with the position its keys are rotated to."""

    def __init__(self, adapter: ModelAdapter, num_rows: int) -> None:
        self._adapter = adapter
        self._layers = [
            (_rows_like(layer.keys, num_rows), _rows_like(layer.values, num_rows))
            for layer in adapter.empty_cache(1).layers
        ]
        self._positions = torch.zeros(num_rows, dtype=torch.long, device=adapter.device)

    def store(
        self, cache: RequestCache, *, slots: torch.Tensor, rows: torch.Tensor, at: torch.Tensor
    ) -> None:
        """Copy KV from slots of a cache, its keys at positions `at`, to rows, (tokens,) each."""
        self._positions[rows] = at
        for layer, (keys, values) in zip(cache.layers, self._layers, strict=True):
            keys.index_copy_(2, rows, layer.keys.index_select(2, slots))
            values.index_copy_(2, rows, layer.values.index_select(2, slots))

    def load(
        self,
        cache: RequestCache,
        *,
        slots: torch.Tensor,
        rows: torch.Tensor,
        at: torch.Tensor,
        length: int,
        is_rotated: bool = True,
    ) -> None:
        """Copy KV of any rows to a cache, rotating keys to their new positions (DepCache eq. 5);
        bit for bit if none changes. `is_rotated=False`: the paper's ablation."""
        stored = self._positions[rows]
        rotation = None
        if is_rotated and not bool((stored == at).all()):
            frequencies = self._adapter.frequencies(length)
            rotation = KeyRotation(
                stored=stored,
                target=at,
                old=[(frequencies, len(rows))],
                new=frequencies,
                layouts=self._adapter.layouts,
            )
        for index, (layer, parts) in enumerate(zip(cache.layers, self._layers, strict=True)):
            keys, values = (part.index_select(2, rows) for part in parts)
            if rotation is not None:
                keys = rotation.apply(keys, index)
            layer.keys.index_copy_(2, slots, keys)
            layer.values.index_copy_(2, slots, values)


def _rows_like(tensor: torch.Tensor, num_rows: int) -> torch.Tensor:
    return tensor.new_empty(1, tensor.shape[1], num_rows, tensor.shape[3])
