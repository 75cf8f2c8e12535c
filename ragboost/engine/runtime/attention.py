"""Attention over a packed batch: rows of several sequences in one forward, each over its own KV.

Registered with transformers under `ragged`; knows positions and tensors, not requests. Causality is
by absolute position, so a segment may hold any ascending positions of its sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from ragboost.engine.runtime.kv import SequenceKV

IMPLEMENTATION = "ragboost_ragged"


TILE = 32
"""Rows of a tile on a CPU: as many as SDPA takes at a time there. Elsewhere there is one tile."""


class AttentionTile(NamedTuple):
    """Some rows of a segment, and the keys that they see.

    Attributes:
        rows, keys: which.
        mask: of each row, (rows, keys) bool; None: all keys are seen.
    """

    rows: slice
    keys: slice
    mask: Tensor | None


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one sequence in a packed batch.

    Attributes:
        token_ids: what to compute.
        positions: where, ascending, (len(token_ids),); every other position below the last one
            must have been written to `kv`.
        num_keys: keys that the last row sees, its position + 1.
        kv: the sequence's KV cache; the rows' keys and values are written to it.
        wants_logits: whether the last row's logits are needed.
        windows: sliding windows that layers have asked for.
    """

    token_ids: Sequence[int]
    positions: Tensor
    num_keys: int
    kv: SequenceKV
    wants_logits: bool = True
    windows: set[int | None] = field(default_factory=set)
    _tiles: "dict[int | None, list[AttentionTile]]" = field(
        default_factory=dict, init=False, repr=False
    )

    def is_square(self, window: int | None) -> bool:
        """Whether the rows are all positions from 0 on, each seeing all before it."""
        return len(self.token_ids) == self.num_keys and not self._cuts(window)

    def tiles(self, window: int | None) -> "list[AttentionTile]":
        """Cut the rows into tiles, each with the keys that its rows see."""
        if not self._cuts(window):
            window = None
        if window not in self._tiles:
            self._tiles[window] = self._make_tiles(window)
        return self._tiles[window]

    def _cuts(self, window: int | None) -> bool:
        return window is not None and window < self.num_keys

    def _make_tiles(self, window: int | None) -> "list[AttentionTile]":
        if window is None and len(self.token_ids) == 1:
            return [AttentionTile(slice(0, 1), slice(0, self.num_keys), None)]
        count = len(self.token_ids)
        size = TILE if self.positions.device.type == "cpu" else count
        bounds, tiles = self.positions.tolist(), []
        for first in range(0, count, size):
            rows = slice(first, min(first + size, count))
            low = 0 if window is None else max(0, bounds[first] - window + 1)
            keys = slice(low, bounds[rows.stop - 1] + 1)
            slots = torch.arange(keys.start, keys.stop, device=self.positions.device)
            own = self.positions[rows, None]
            mask = slots <= own
            if window is not None:
                mask &= slots > own - window
            tiles.append(AttentionTile(rows, keys, mask))
        return tiles


class PackedCache(Cache):  # type: ignore[misc]  # transformers is not typed
    """Routes the keys and values of a forward to the sequences that its rows belong to."""

    def __init__(self, segments: Sequence[Segment], num_layers: int) -> None:
        self.segments = segments
        super().__init__(layers=[_PackedLayer(segments, layer) for layer in range(num_layers)])


class _PackedLayer(CacheLayerMixin):  # type: ignore[misc]  # as above
    """One layer of a `PackedCache`; the attention function reads the sequences' KV itself."""

    is_sliding = False

    def __init__(self, segments: Sequence[Segment], layer: int) -> None:
        super().__init__()
        self._segments = segments
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to prepare: the sequences own the buffers."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (1, heads, rows, dim) to the sequences; return them unchanged."""
        first = 0
        for segment in self._segments:
            last = first + len(segment.token_ids)
            segment.kv.write(
                self._layer,
                segment.positions,
                key_states[0, :, first:last],
                value_states[0, :, first:last],
            )
            first = last
        return key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Length and offset of the keys as transformers' own mask would see them."""
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        """0: positions are given explicitly."""
        return 0

    def get_max_length(self) -> int:
        """-1: no maximum."""
        return -1


def ragged_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    ragged: PackedCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention function in transformers' signature.

    Args:
        module: the attention layer; only its `layer_idx` is read.
        query: (1, query heads, rows, dim), the segments' rows one after the other.
        key, value: of these rows; already written by `PackedCache`, not read.
        attention_mask: not read; masks come from positions.
        ragged: the batch.
        scaling: factor on the scores; None: 1 / sqrt(dim).
        sliding_window: keys that a row sees, itself included; None: all before it.
        softcap: bound of the scores by tanh (Gemma 2).

    Returns:
        (1, rows, query heads, value dim), and no weights.
    """
    outputs, first = [], 0
    for segment in ragged.segments:
        last = first + len(segment.token_ids)
        segment.windows.add(sliding_window)
        keys, values = segment.kv.layers[module.layer_idx]
        outputs.append(
            _attend(
                query[:, :, first:last],
                keys[None, :, : segment.num_keys],
                values[None, :, : segment.num_keys],
                segment,
                window=sliding_window,
                scaling=scaling,
                softcap=softcap,
            )
        )
        first = last
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    segment: Segment,
    *,
    window: int | None,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    if softcap is None and segment.is_square(window):
        # Without an explicit mask a causal square costs half.
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    parts = [
        _masked(
            query[:, :, tile.rows],
            key[:, :, tile.keys],
            value[:, :, tile.keys],
            tile.mask,
            scaling=scaling,
            softcap=softcap,
        )
        for tile in segment.tiles(window)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def _masked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scaling, enable_gqa=groups != 1
        )
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def register() -> None:
    """Make the function known to transformers; calling it again changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, ragged_attention)
