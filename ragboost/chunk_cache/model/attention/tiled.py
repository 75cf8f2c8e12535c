"""SDPA over tiles of sorted rows, each cut to the keys its last row can see.

The best choice on a CPU: the work is within a few per cent of the causal area. Only the keys from a
tile's first row on need a mask. Where torch tells how much weight the keys of a call have, those
before are computed without one, and the two results are weighed.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ragboost.chunk_cache.model.attention.base import AttentionInputs, exact_mask
from ragboost.chunk_cache.model.attention.dense import masked_attention

TILE = 32
"""Rows per tile: as many as SDPA takes at a time on a CPU, from 32 to 191. Smaller tiles call it
more often, larger ones mask more keys for nothing."""
LAUNCHED_TILE = 128
"""Rows per tile on an accelerator, where each call is a launch."""
SPLIT_TILE = 64
"""Rows per tile where its first keys are computed without a mask: more, since masking is cheaper
then, and heads that share keys are taken together."""

Flash = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""Attention and the logarithm of what its softmax divides by, (1, heads, rows)."""


class RowTile(NamedTuple):
    """Some rows and the keys they see.

    Attributes:
        rows: which.
        keys: up to the last row's.
        first: keys before this one are seen by all rows, and computed apart; the first of `keys`
            where nothing is.
        mask: over the keys from `first` on: (rows, keys) bool, or (rows of a KV head, keys) to be
            added to the scores where keys are computed apart.
    """

    rows: slice
    keys: slice
    first: int
    mask: torch.Tensor


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
        flash = find_flash(inputs)
        for tile in _tiles(inputs, is_split=flash is not None):
            if flash is not None and tile.first > tile.keys.start:
                out[:, :, tile.rows] = _attend_apart(inputs, tile, flash)
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
    """Return torch's own attention of a CPU, the one that SDPA calls there; None where it is not to
    be had, or does not take these inputs."""
    if inputs.query.device.type != "cpu" or inputs.query.shape[-1] != inputs.value.shape[-1]:
        return None
    if inputs.window is not None or inputs.softcap is not None:
        return None
    if inputs.sinks is not None or inputs.visible is not None:
        return None
    return getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


def _attend_apart(inputs: AttentionInputs, tile: RowTile, flash: Flash) -> torch.Tensor:
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
    """Return the tiles, made once for all layers with the same window."""
    memo = ("tiled", inputs.window, is_split)
    if memo in inputs.memo:
        known: list[RowTile] = inputs.memo[memo]
        return known
    bounds, tiles = inputs.positions.tolist(), []
    plain = TILE if inputs.query.device.type == "cpu" else LAUNCHED_TILE
    size = SPLIT_TILE if is_split else plain
    for begin in range(0, len(bounds), size):
        end = min(begin + size, len(bounds))
        start = 0 if inputs.window is None else max(0, bounds[begin] - inputs.window + 1)
        stop = bounds[end - 1] + 1
        # Every row sees a key from the first row's own on, so that none has only masked ones.
        is_apart = is_split and bounds[begin] > stop - bounds[begin]
        first = bounds[begin] if is_apart else start
        mask = exact_mask(
            inputs.positions[begin:end],
            stop - first,
            window=inputs.window,
            visible=inputs.visible,
            first_key=first,
        )
        if is_apart:
            added = torch.zeros(mask.shape, dtype=inputs.query.dtype)
            added.masked_fill_(~mask, float("-inf"))
            mask = added.repeat(inputs.query.shape[1] // inputs.key.shape[1], 1)
        tiles.append(RowTile(slice(begin, end), slice(start, stop), first, mask))
    inputs.memo[memo] = tiles
    return tiles
