"""SDPA over tiles of sorted rows, each cut to the keys its last row can see.

The best choice on a CPU: the work is within a few per cent of the causal area, and only the keys
between a tile's first and last row need a mask.
"""

import torch

from ragboost.chunk_cache.attention.base import AttentionInputs, exact_mask
from ragboost.chunk_cache.attention.dense import masked_attention

TILE = 32
"""Rows per tile: as many as SDPA takes at a time on a CPU, from 32 to 191. Smaller tiles call it
more often, larger ones mask more keys for nothing."""


class TiledAttention:
    """Exact for every input the dense back end takes."""

    def supports(self, inputs: AttentionInputs) -> bool:
        return True

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        out = torch.empty(
            (*inputs.query.shape[:3], inputs.value.shape[-1]),
            dtype=inputs.query.dtype,
            device=inputs.query.device,
        )
        for rows, keys, mask in _tiles(inputs):
            out[:, :, rows] = masked_attention(
                inputs,
                inputs.query[:, :, rows],
                inputs.key[:, :, keys],
                inputs.value[:, :, keys],
                mask,
            )
        return out


def _tiles(inputs: AttentionInputs) -> list[tuple[slice, slice, torch.Tensor]]:
    """Return rows, keys and mask of each tile, made once for all layers with the same window."""
    memo = ("tiled", inputs.window)
    if memo in inputs.memo:
        known: list[tuple[slice, slice, torch.Tensor]] = inputs.memo[memo]
        return known
    bounds, tiles = inputs.positions.tolist(), []
    for begin in range(0, len(bounds), TILE):
        end = min(begin + TILE, len(bounds))
        first = 0 if inputs.window is None else max(0, bounds[begin] - inputs.window + 1)
        keys = slice(first, bounds[end - 1] + 1)
        mask = exact_mask(
            inputs.positions[begin:end],
            keys.stop - first,
            window=inputs.window,
            visible=inputs.visible,
            first_key=first,
        )
        tiles.append((slice(begin, end), keys, mask))
    inputs.memo[memo] = tiles
    return tiles
