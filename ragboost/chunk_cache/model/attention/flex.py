"""FlexAttention with a block mask derived from the rows' positions.

Building the mask element by element takes seconds and gigabytes at 32K keys; deriving it from the
first and last position of each tile of rows takes milliseconds and gives the same blocks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from ragboost.chunk_cache.model.attention.backend import AttentionInputs

BLOCK = 128


def block_mask(positions: torch.Tensor, num_keys: int, *, window: int | None) -> BlockMask:
    """Return the exact block mask of ascending positions, (rows,), over `num_keys` keys."""
    device, rows = positions.device, len(positions)
    tiles, blocks = -(-rows // BLOCK), -(-num_keys // BLOCK)
    padded = torch.cat((positions, positions[-1:].expand(tiles * BLOCK - rows)))
    tile = padded.view(tiles, BLOCK)
    low, high = tile[:, :1], tile[:, -1:]  # (tiles, 1)
    first = torch.arange(blocks, device=device)[None] * BLOCK  # (1, blocks)
    last = first + BLOCK - 1
    touched, full = first <= high, last <= low
    if window is not None:
        touched &= last > low - window
        full &= first > high - window

    def is_visible(_batch: Any, _head: Any, row: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        position = padded[row]
        seen = key <= position
        return seen if window is None else seen & (key > position - window)

    partial_count, partial = _listed(touched & ~full)
    full_count, whole = _listed(full)
    return BlockMask.from_kv_blocks(
        partial_count,
        partial,
        full_count,
        whole,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=is_visible,
        seq_lengths=(rows, num_keys),
        compute_q_blocks=False,
    )


def _listed(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn (tiles, blocks) bool into counts (1, 1, tiles) and indices (1, 1, tiles, blocks)."""
    order = chosen.int().argsort(dim=-1, descending=True, stable=True).int()
    return chosen.sum(-1, dtype=torch.int32)[None, None], order[None, None].contiguous()


class FlexAttention:
    """FlexAttention, compiled on an accelerator. On a CPU it is slower than the tiled backend."""

    def __init__(self) -> None:
        self._compiled: Callable[..., Any] | None = None

    def supports(self, inputs: AttentionInputs) -> bool:
        return inputs.sinks is None and inputs.visible is None

    def attend(self, inputs: AttentionInputs) -> torch.Tensor:
        if self._compiled is None:
            self._compiled = (
                torch.compile(flex_attention, dynamic=True)
                if inputs.query.is_cuda
                else flex_attention
            )
        cap = inputs.softcap

        def capped(score: torch.Tensor, *_: Any) -> torch.Tensor:
            return score if cap is None else cap * torch.tanh(score / cap)

        out: torch.Tensor = self._compiled(
            inputs.query,
            inputs.key,
            inputs.value,
            score_mod=None if cap is None else capped,
            block_mask=_mask(inputs),
            scale=inputs.scaling,
            enable_gqa=inputs.query.shape[1] != inputs.key.shape[1],
        )
        return out


def _mask(inputs: AttentionInputs) -> BlockMask:
    memo = ("flex", inputs.window)
    if memo not in inputs.memo:
        inputs.memo[memo] = block_mask(inputs.positions, inputs.num_keys, window=inputs.window)
    return inputs.memo[memo]
