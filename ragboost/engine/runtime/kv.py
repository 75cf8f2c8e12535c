"""Memory for keys and values: a contiguous buffer per running request, so that attention needs no
gather, and one pool of cached blocks. Does not know which block means what."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ragboost.chunk_cache.model.request_cache import RequestCache


class KVLayout(NamedTuple):
    layers: tuple[tuple[int, int, int], ...]  # KV heads, dimension of keys, and of values
    dtype: Any  # torch.dtype
    device: Any  # torch.device

    @property
    def bytes_per_token(self) -> int:
        size = sum(heads * (key_dim + value_dim) for heads, key_dim, value_dim in self.layers)
        return size * int(self.dtype.itemsize)

    def allocate(self, *size: int) -> list[tuple[Tensor, Tensor]]:
        """Return empty (keys, values) per layer, each (*size[:-1], heads, size[-1], dim)."""
        options = {"dtype": self.dtype, "device": self.device}
        *outer, tokens = size
        return [
            (
                torch.empty(*outer, heads, tokens, key_dim, **options),
                torch.empty(*outer, heads, tokens, value_dim, **options),
            )
            for heads, key_dim, value_dim in self.layers
        ]


class RequestKV:
    # position 0                 num_tokens             capacity
    #          |  prompt         |  generated           |

    def __init__(self, layout: KVLayout, capacity: int) -> None:
        self.layers = layout.allocate(capacity)  # (heads, positions, dim); keys are post-RoPE

    def cache(self, stop: int) -> RequestCache:
        """Return the first `stop` positions as the cache of a forward, which writes to them."""
        return RequestCache(
            [(keys[None, :, :stop], values[None, :, :stop]) for keys, values in self.layers]
        )


class KVPool:
    """Keys and values of cached blocks, one row ("slot") per block."""

    def __init__(self, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.layers = layout.allocate(num_blocks, block_size)  # (slots, heads, block_size, dim)

    def load(self, slots: Sequence[int], kv: RequestKV, *, start: int) -> None:
        index = torch.tensor(slots, device=self.layers[0][0].device)
        end = start + len(slots) * self.block_size
        for pool, own in zip(self.layers, kv.layers, strict=True):
            for source, target in zip(pool, own, strict=True):
                blocks = source.index_select(0, index).transpose(0, 1)  # (heads, n, block, dim)
                target[:, start:end] = blocks.flatten(1, 2)

    def store(self, slots: Sequence[int], kv: RequestKV, *, start: int) -> None:
        index = torch.tensor(slots, device=self.layers[0][0].device)
        end = start + len(slots) * self.block_size
        for pool, own in zip(self.layers, kv.layers, strict=True):
            for target, source in zip(pool, own, strict=True):
                blocks = source[:, start:end].unflatten(1, (len(slots), self.block_size))
                target.index_copy_(0, index, blocks.transpose(0, 1))
