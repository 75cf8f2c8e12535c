"""A pool of KV rows for a fixed number of tokens, on the model's device and in host memory. Does
not know which token is stored in which row."""

import torch

from ragboost.chunk_cache.model.adapter import ModelAdapter
from ragboost.chunk_cache.model.request_cache import RequestCache
from ragboost.chunk_cache.model.rope import KeyRotation


class TokenPool:
    """Rows of KV, each with the position its keys are rotated to; those from `num_rows` on in host
    memory, page-locked if the model is on a GPU."""

    def __init__(self, adapter: ModelAdapter, num_rows: int, *, num_host_rows: int = 0) -> None:
        self.num_rows = num_rows
        self._adapter = adapter
        self._layers = _empty(adapter, num_rows, device=adapter.device)
        self._host = _empty(adapter, num_host_rows, device=torch.device("cpu"))
        size = num_rows + num_host_rows
        self._positions = torch.zeros(size, dtype=torch.long, device=adapter.device)

    def move(self, *, rows: torch.Tensor, to: torch.Tensor) -> None:
        self._positions[to] = self._positions[rows]
        is_demotion = bool(to[0] >= self.num_rows)
        for above, below in zip(self._layers, self._host, strict=True):
            for fast, slow in zip(above, below, strict=True):
                if is_demotion:
                    kv = fast.index_select(2, rows).cpu()
                    slow.index_copy_(2, (to - self.num_rows).cpu(), kv)
                else:
                    fast.index_copy_(2, to, self._from_host(slow, rows))

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
        is_host = rows >= self.num_rows
        for index, layer in enumerate(cache.layers):
            keys, values = (self._read(index, part, rows, is_host) for part in (0, 1))
            if rotation is not None:
                keys = rotation.apply(keys, index)
            layer.keys.index_copy_(2, slots, keys)
            layer.values.index_copy_(2, slots, values)

    def _read(
        self, layer: int, part: int, rows: torch.Tensor, is_host: torch.Tensor
    ) -> torch.Tensor:
        above, below = self._layers[layer][part], self._host[layer][part]
        if below.shape[2] == 0:
            return above.index_select(2, rows)
        read = above.new_empty(1, above.shape[1], len(rows), above.shape[3])
        read[:, :, ~is_host] = above.index_select(2, rows[~is_host])
        read[:, :, is_host] = self._from_host(below, rows[is_host])
        return read

    def _from_host(self, stored: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return stored.index_select(2, (rows - self.num_rows).cpu()).to(self._adapter.device)


def _empty(
    adapter: ModelAdapter, num_rows: int, *, device: torch.device
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    is_pinned = num_rows > 0 and device.type == "cpu" and adapter.device.type == "cuda"

    def empty(like: torch.Tensor) -> torch.Tensor:
        shape = (1, like.shape[1], num_rows, like.shape[3])
        return torch.empty(shape, dtype=like.dtype, device=device, pin_memory=is_pinned)

    return [(empty(layer.keys), empty(layer.values)) for layer in adapter.empty_cache(1).layers]
