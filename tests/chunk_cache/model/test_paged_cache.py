"""KV is read out of an engine's blocks whatever order they keep it in."""

from functools import partial

import pytest
import torch

from ragboost.chunk_cache.model.paged_cache import PagedLayer
from ragboost.errors import UnsupportedModelError

BLOCKS, SIZE, HEADS, DIM = 6, 4, 2, 8


def write_side_by_side(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """(2, blocks, size, heads, dim), as FlashAttention keeps it."""
    for part, new in zip(cache, (keys, values), strict=True):
        part[slots // SIZE, slots % SIZE] = new


def write_packed(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """(blocks, heads, size, 2 * dim), with keys as columns in the first half of a block."""
    flat = cache.view(cache.shape[0], HEADS, 2, SIZE * DIM)
    for token, slot in enumerate(slots.tolist()):
        block, row = divmod(slot, SIZE)
        flat[block, :, 0, row::SIZE] = keys[token]
        flat[block, :, 1, row * DIM : (row + 1) * DIM] = values[token]


def write_rounded(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor
) -> None:
    write_side_by_side((keys / 8).round(), (values / 8).round(), cache, slots)


CACHES = {
    "side by side": (write_side_by_side, (2, BLOCKS, SIZE, HEADS, DIM)),
    "packed": (write_packed, (BLOCKS, HEADS, SIZE, 2 * DIM)),
}


def make_layer(kind: str, dtype: torch.dtype) -> PagedLayer:
    write, shape = CACHES[kind]
    return PagedLayer(
        torch.zeros(shape, dtype=dtype),
        write,
        num_slots=BLOCKS * SIZE,
        block_size=SIZE,
        shapes=[(HEADS, DIM)] * 2,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", CACHES)
def test_what_is_written_is_read_in_the_order_of_the_block_table(
    kind: str, dtype: torch.dtype
) -> None:
    layer = make_layer(kind, dtype)
    keys, values = torch.randn(2, 1, HEADS, 10, DIM, dtype=dtype)
    table = torch.tensor([4, 1, 3])
    positions = torch.arange(10)
    slots = table[positions // SIZE] * SIZE + positions % SIZE

    layer.write(keys, values, slots)
    found = layer.read(slots[3:9])

    assert torch.equal(found[0], keys[:, :, 3:9])
    assert torch.equal(found[1], values[:, :, 3:9])


def test_a_cache_that_changes_what_it_holds_is_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="unchanged"):
        PagedLayer(
            torch.zeros(CACHES["side by side"][1]),
            partial(write_rounded),
            num_slots=BLOCKS * SIZE,
            block_size=SIZE,
            shapes=[(HEADS, DIM)] * 2,
        )
