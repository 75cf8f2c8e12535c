"""Rows of a packed batch see the keys before them, within their window, and no others."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ragboost.chunk_cache.model.attention.base import exact_mask
from ragboost.engine.runtime.attention import TILE, Segment
from ragboost.engine.runtime.kv import KVLayout, LayerShape, RequestKV

LAYOUT = KVLayout((LayerShape(1, 4, 1, 4),), torch.float32, torch.device("cpu"))


@given(
    rows=st.sets(st.integers(0, 150), min_size=1, max_size=100),
    window=st.none() | st.integers(1, 200),
)
@settings(max_examples=60, deadline=None)
def test_tiles_show_each_row_the_keys_of_the_exact_mask(rows: set[int], window: int | None) -> None:
    positions = torch.tensor(sorted(rows))
    num_keys = int(positions[-1]) + 1
    segment = Segment([0] * len(rows), positions, num_keys, RequestKV(LAYOUT, num_keys))

    seen = torch.zeros(len(rows), num_keys, dtype=torch.bool)
    for tile in segment.tiles(window):
        seen[tile.rows, tile.keys] = True if tile.mask is None else tile.mask

    assert torch.equal(seen, exact_mask(positions, num_keys, window=window))
    assert all(tile.rows.stop - tile.rows.start <= TILE for tile in segment.tiles(window))
