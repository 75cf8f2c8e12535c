"""Read an engine's paged KV cache, whatever order its kernels keep a block's elements in. Writing
goes through the engine; the order is measured by writing numbered elements once."""

from collections.abc import Callable, Sequence

import torch

from ragboost.errors import UnsupportedModelError

Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]
"""The engine's writer: keys and values, (tokens, kv heads, head_dim), into a cache at slots."""
_BASE = 100  # numbers up to this are exact in every dtype
_NUM_DIGITS = 4


class PagedLayer:
    """The blocks of one layer, `block_size` tokens unless kernels divide them; `shapes` are (heads,
    head_dim) of keys and values. Raises `UnsupportedModelError` if a block changes its elements."""

    def __init__(
        self,
        cache: torch.Tensor,
        write: Write,
        *,
        num_slots: int,
        block_size: int,
        shapes: Sequence[tuple[int, int]],
    ) -> None:
        self._cache, self._write = cache, write
        self._shapes = list(shapes)
        for dim, size in enumerate(cache.shape[:2]):
            if size % (num_slots // block_size) == 0 and num_slots % size == 0:
                self._dim, self.block_size = dim, num_slots // size
                places = self._measure()
                if places is not None:
                    self._places = places
                    return
        raise UnsupportedModelError(
            f"a KV cache of shape {tuple(cache.shape)} does not hold {num_slots} slots unchanged"
        )

    def write(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
        self._write(
            keys[0].transpose(0, 1).contiguous(),
            values[0].transpose(0, 1).contiguous(),
            self._cache,
            slots,
        )

    def read(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return copies of the keys and values at these slots, (1, kv heads, tokens, head_dim)."""
        blocks, row = torch.unique_consecutive(slots // self.block_size, return_inverse=True)
        found = self._cache.index_select(self._dim, blocks).movedim(self._dim, 0)
        flat = found.reshape(len(blocks), -1)
        at = row * self.block_size + slots % self.block_size
        keys, values = (
            flat.index_select(1, places).view(-1, heads, size)[at].transpose(0, 1)[None]
            for places, (heads, size) in zip(self._places, self._shapes, strict=True)
        )
        return keys.contiguous(), values.contiguous()

    def _measure(self) -> list[torch.Tensor] | None:
        """Return for keys and values the place of each element in a block; None if the second of
        three blocks does not hold exactly its own."""
        shape = list(self._cache.shape)
        shape[self._dim] = 3
        sizes = [self.block_size * heads * dim for heads, dim in self._shapes]
        numbers = torch.arange(sum(sizes), device=self._cache.device)
        slots = torch.arange(self.block_size, 2 * self.block_size, device=self._cache.device)
        decoded, blocks = torch.zeros(0), self._cache
        for digit in range(_NUM_DIGITS):
            probe = _like(self._cache, shape)
            parts = (numbers // _BASE**digit % _BASE + 1).to(self._cache.dtype).split(sizes)
            keys, values = (
                part.view(self.block_size, heads, dim)
                for part, (heads, dim) in zip(parts, self._shapes, strict=True)
            )
            self._write(keys, values, probe, slots)
            blocks = probe.movedim(self._dim, 0).reshape(3, -1)
            if blocks[0].any() or blocks[2].any() or (blocks[1] > 0).sum() != len(numbers):
                return None
            part = (blocks[1].long() - 1).clamp_min(0) * _BASE**digit
            decoded = part if digit == 0 else decoded + part
        used = (blocks[1] > 0).nonzero().flatten()
        places = torch.full_like(numbers, -1)
        places[decoded[used].clamp_max(len(numbers) - 1)] = used
        if bool((places < 0).any()):
            return None
        return list(places.split(sizes))


def _like(cache: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    order = sorted(range(cache.dim()), key=lambda dim: -cache.stride(dim))
    zeros = torch.zeros([shape[dim] for dim in order], dtype=cache.dtype, device=cache.device)
    back = [order.index(dim) for dim in range(cache.dim())]
    return zeros.permute(back)
