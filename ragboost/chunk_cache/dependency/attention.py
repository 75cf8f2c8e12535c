"""Dependency attention: every row over the tokens it depends on, tile by tile.

A tile is some rows that stand next to each other in a tree; its keys are the rows themselves and
what any of them sees, gathered, so that branches elsewhere cost nothing. Knows a layout. Does not
know models or caches. Exact for every input that the dense back end takes.
"""

from typing import NamedTuple

import torch

from ragboost.chunk_cache.dependency.layout import Interval, Layout, merged
from ragboost.chunk_cache.model.attention.base import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import masked_attention

TILE = 128
"""Rows per tile at most."""
CALL_PAIRS = 4096
"""Pairs of row and key that cost about as much as one more call: tiles grow while merging them
wastes less."""
LONGEST_CHAIN = 4096
"""A prompt without branches is handed to the model's own attention, bit for bit what it computes,
while its dense mask is small."""


class _Tile(NamedTuple):
    """Rows [begin, end) of the pass, slots of their keys, and the mask, (rows, keys)."""

    begin: int
    end: int
    keys: torch.Tensor
    mask: torch.Tensor


class TreeAttention:
    """The attention back end of one prompt.

    Args:
        layout: on the model's device.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def supports(self, inputs: AttentionInputs) -> bool:
        return not (self._layout.is_chain and inputs.num_keys <= LONGEST_CHAIN)

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        shape = (*inputs.query.shape[:3], inputs.value.shape[-1])
        out = torch.empty(shape, dtype=inputs.query.dtype, device=inputs.query.device)
        for tile in self._tiles(inputs):
            out[:, :, tile.begin : tile.end] = masked_attention(
                inputs,
                inputs.query[:, :, tile.begin : tile.end],
                inputs.key.index_select(2, tile.keys),
                inputs.value.index_select(2, tile.keys),
                tile.mask,
            )
        return out

    def _tiles(self, inputs: AttentionInputs) -> list[_Tile]:
        """Return the tiles, made once for all layers with the same window."""
        memo = ("tree", inputs.window)
        if memo not in inputs.memo:
            slots = inputs.positions.tolist()
            plan = _plan(self._layout, slots)
            inputs.memo[memo] = [self._tile(inputs, *part) for part in plan]
        tiles: list[_Tile] = inputs.memo[memo]
        return tiles

    def _tile(
        self, inputs: AttentionInputs, begin: int, end: int, seen: tuple[Interval, ...]
    ) -> _Tile:
        device = inputs.positions.device
        keys = torch.cat([torch.arange(a, b, device=device) for a, b in seen])
        rows = inputs.positions[begin:end, None]
        mask = self._layout.sees(rows, keys[None])
        if inputs.window is not None:
            at = self._layout.positions
            mask &= at[keys][None] > at[rows] - inputs.window
        if inputs.visible is not None:
            mask &= inputs.visible[keys][None]
        return _Tile(begin, end, keys, mask)


def _plan(layout: Layout, slots: list[int]) -> list[tuple[int, int, tuple[Interval, ...]]]:
    """Cut ascending rows into tiles: first row, last row + 1, and the slots they see."""
    tiles: list[tuple[int, int, tuple[Interval, ...]]] = []
    for begin, end, seen in _pieces(layout, slots):
        if tiles:
            first, middle, before = tiles[-1]
            together = merged([*before, *seen])
            apart = (middle - first) * _size(before) + (end - begin) * _size(seen)
            waste = (end - first) * _size(together) - apart
            if end - first <= TILE and waste <= CALL_PAIRS:
                tiles[-1] = (first, end, together)
                continue
        tiles.append((begin, end, seen))
    return tiles


def _pieces(layout: Layout, slots: list[int]) -> list[tuple[int, int, tuple[Interval, ...]]]:
    """Cut ascending rows at the borders of runs, and long runs into tiles."""
    pieces, begin = [], 0
    for run in layout.runs:
        while begin < len(slots) and slots[begin] < run.stop:
            end = begin + 1
            while end < len(slots) and slots[end] < run.stop and end - begin < TILE:
                end += 1
            seen = merged([*run.sees, (run.start, slots[end - 1] + 1)])
            pieces.append((begin, end, seen))
            begin = end
    return pieces


def _size(intervals: tuple[Interval, ...]) -> int:
    return sum(stop - start for start, stop in intervals)
