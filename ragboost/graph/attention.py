"""Dependency attention, tile by tile: rows adjacent in a tree over all that any of them sees,
gathered, so that other branches cost nothing. Exact for all inputs of the dense backend."""

from typing import NamedTuple

import torch

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import masked_attention
from ragboost.graph.layout import Interval, Layout, merged

TILE = 128  # rows at most
# Pairs of row and key that cost about as much as another call: tiles are merged while that wastes
# fewer pairs.
CALL_PAIRS = 4096
# Up to so many keys a prompt without branches uses the model's own attention, bit for bit, since
# its dense mask is small.
LONGEST_CHAIN = 4096


class _Piece(NamedTuple):
    begin: int
    end: int
    sees: tuple[Interval, ...]

    @property
    def num_pairs(self) -> int:
        return (self.end - self.begin) * sum(stop - start for start, stop in self.sees)


class _Tile(NamedTuple):
    begin: int
    end: int
    keys: torch.Tensor
    mask: torch.Tensor


class TreeAttention:
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
        memo = ("tree", inputs.window)
        if memo not in inputs.memo:
            pieces = _merged_pieces(self._layout, inputs.positions.tolist())
            inputs.memo[memo] = [self._tile(inputs, piece) for piece in pieces]
        tiles: list[_Tile] = inputs.memo[memo]
        return tiles

    def _tile(self, inputs: AttentionInputs, piece: _Piece) -> _Tile:
        device = inputs.positions.device
        keys = torch.cat([torch.arange(a, b, device=device) for a, b in piece.sees])
        rows = inputs.positions[piece.begin : piece.end, None]
        mask = self._layout.sees(rows, keys[None])
        if inputs.window is not None:
            at = self._layout.positions
            mask &= at[keys][None] > at[rows] - inputs.window
        if inputs.visible is not None:
            mask &= inputs.visible[keys][None]
        return _Tile(piece.begin, piece.end, keys, mask)


def _merged_pieces(layout: Layout, slots: list[int]) -> list[_Piece]:
    tiles: list[_Piece] = []
    for piece in _pieces(layout, slots):
        if tiles:
            last = tiles[-1]
            together = _Piece(last.begin, piece.end, merged([*last.sees, *piece.sees]))
            waste = together.num_pairs - last.num_pairs - piece.num_pairs
            if together.end - together.begin <= TILE and waste <= CALL_PAIRS:
                tiles[-1] = together
                continue
        tiles.append(piece)
    return tiles


def _pieces(layout: Layout, slots: list[int]) -> list[_Piece]:
    pieces, begin = [], 0
    for run in layout.runs:
        while begin < len(slots) and slots[begin] < run.stop:
            end = begin + 1
            while end < len(slots) and slots[end] < run.stop and end - begin < TILE:
                end += 1
            sees = merged([*run.sees, (run.start, slots[end - 1] + 1)])
            pieces.append(_Piece(begin, end, sees))
            begin = end
    return pieces
