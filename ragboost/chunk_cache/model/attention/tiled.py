"""SDPA over tiles of sorted rows, each cut to the keys that its last row sees: the best choice on a
CPU. Where torch returns the log-sum-exp, the keys before a tile's first row are attended to without
a mask, and the two results are merged."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import masked_attention

TILE = 32
"""Rows per tile on a CPU, where SDPA processes 32 to 191 rows at a time. Smaller tiles need more
calls, larger ones mask more keys."""
LAUNCHED_TILE = 128
"""Rows per tile on an accelerator, where each call is a kernel launch."""
SPLIT_TILE = 64
"""Rows per tile whose first keys need no mask: more than `TILE`, since less is masked, and heads
that share keys are processed together."""

Flash = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Attention that also returns the log-sum-exp of the scores, (1, heads, rows)."""


class RowTile(NamedTuple):
    rows: slice  # the rows of the tile
    keys: slice  # keys up to that of the last row
    # keys before this one are visible to all rows and attended to separately; equal to `keys.start`
    # if there are none
    first: int
    # over the keys from `first` on: (rows, keys) bool, or (rows of a KV head, keys) added to the
    # scores if the tile is split
    mask: torch.Tensor


class TiledAttention:
    def supports(self, inputs: AttentionInputs) -> bool:
        return True

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        out = torch.empty(
            (*inputs.query.shape[:3], inputs.value.shape[-1]),
            dtype=inputs.query.dtype,
            device=inputs.query.device,
        )
        flash = find_flash(inputs)
        for tile in _tiles(inputs, is_split=flash is not None):
            if flash is not None and tile.first > tile.keys.start:
                out[:, :, tile.rows] = _attend_split(inputs, tile, flash)
            else:
                out[:, :, tile.rows] = masked_attention(
                    inputs,
                    inputs.query[:, :, tile.rows],
                    inputs.key[:, :, tile.keys],
                    inputs.value[:, :, tile.keys],
                    tile.mask,
                )
        return out


def find_flash(inputs: AttentionInputs) -> Flash | None:
    """Return the kernel that SDPA calls on a CPU, if torch has it and it accepts these inputs."""
    if inputs.query.device.type != "cpu" or inputs.query.shape[-1] != inputs.value.shape[-1]:
        return None
    if inputs.window is not None or inputs.softcap is not None:
        return None
    if inputs.sinks is not None or inputs.visible is not None:
        return None
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def _attend_split(inputs: AttentionInputs, tile: RowTile, flash: Flash) -> torch.Tensor:
    query = inputs.query[:, :, tile.rows]
    # Heads that share a KV head become rows of it, so that its keys are read once.
    rows = query.reshape(1, inputs.key.shape[1], -1, query.shape[-1])
    parts = []
    for keys, mask in (
        (slice(0, tile.first), None),
        (slice(tile.first, tile.keys.stop), tile.mask),
    ):
        key, value = inputs.key[:, :, keys], inputs.value[:, :, keys]
        parts.append(flash(rows, key, value, attn_mask=mask, scale=inputs.scaling))
    (before, weight_before), (after, weight_after) = parts
    share = torch.sigmoid(weight_before - weight_after)[..., None].to(after.dtype)
    return torch.lerp(after, before, share).view(query.shape)


def _tiles(inputs: AttentionInputs, *, is_split: bool) -> list[RowTile]:
    memo = ("tiled", inputs.window, is_split)
    if memo in inputs.memo:
        cached: list[RowTile] = inputs.memo[memo]
        return cached
    bounds, tiles = inputs.positions.tolist(), []
    plain = TILE if inputs.query.device.type == "cpu" else LAUNCHED_TILE
    size = SPLIT_TILE if is_split else plain
    for begin in range(0, len(bounds), size):
        end = min(begin + size, len(bounds))
        start = 0 if inputs.window is None else max(0, bounds[begin] - inputs.window + 1)
        stop = bounds[end - 1] + 1
        # Every row sees a key from the first row's own on, so that no row is masked entirely.
        is_tile_split = is_split and bounds[begin] > stop - bounds[begin]
        first = bounds[begin] if is_tile_split else start
        mask = exact_mask(
            inputs.positions[begin:end],
            stop - first,
            window=inputs.window,
            visible=inputs.visible,
            first_key=first,
        )
        if is_tile_split:
            added = torch.zeros(mask.shape, dtype=inputs.query.dtype)
            added.masked_fill_(~mask, float("-inf"))
            mask = added.repeat(inputs.query.shape[1] // inputs.key.shape[1], 1)
        tiles.append(RowTile(slice(begin, end), slice(start, stop), first, mask))
    inputs.memo[memo] = tiles
    return tiles
