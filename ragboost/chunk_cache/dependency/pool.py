"""A pool of KV rows for a fixed number of tokens.

Knows tensors and rows; does not know which token is stored in which row. On a CPU the memory is
reserved at once and committed by the operating system as rows are written.
"""

import torch

from ragboost.chunk_cache.kv.request_cache import RequestCache
from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.rope import KeyRotation


class TokenPool:
    """Rows of KV, each with the position its keys are rotated to.

    Args:
        adapter: the model.
        num_rows: capacity in tokens.
    """

    def __init__(self, adapter: ModelAdapter, num_rows: int) -> None:
        self.num_rows = num_rows
        self._adapter = adapter
        self._layers = [
            tuple(
                tensor.new_empty(1, tensor.shape[1], num_rows, tensor.shape[3])
                for tensor in (layer.keys, layer.values)
            )
            for layer in adapter.empty_cache(1).layers
        ]
        self._positions = torch.zeros(num_rows, dtype=torch.long, device=adapter.device)

    def store(
        self, cache: RequestCache, *, slots: torch.Tensor, rows: torch.Tensor, at: torch.Tensor
    ) -> None:
        """Copy KV from the cache of a request.

        Args:
            cache: the cache.
            slots, rows: place of each token in the cache and in the pool, (tokens,).
            at: positions that the keys are rotated to, (tokens,).
        """
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
        """Copy KV to the cache of a request, rotating keys to their new positions (DepCache eq. 5).
        Keys are copied bit for bit if no position changes.

        Args:
            cache, slots, rows, at: as in `store`.
            length: tokens of the prompt, which determine the RoPE frequencies.
            is_rotated: False leaves keys as they are, the paper's ablation.
        """
        stored = self._positions[rows]
        rotation = None
        if is_rotated and not bool((stored == at).all()):
            frequencies = self._adapter.frequencies(length)
            rotation = KeyRotation(
                stored=stored,
                wanted=at,
                old=[(frequencies, len(rows))],
                new=frequencies,
                layouts=self._adapter.layouts,
            )
        for index, (layer, (keys, values)) in enumerate(
            zip(cache.layers, self._layers, strict=True)
        ):
            moved = keys.index_select(2, rows)
            if rotation is not None:
                moved = rotation.apply(moved, index)
            layer.keys.index_copy_(2, slots, moved)
            layer.values.index_copy_(2, slots, values.index_select(2, rows))
