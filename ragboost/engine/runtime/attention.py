"""Attention over a packed batch: rows of several requests in one forward, each over its own KV.

Registered with transformers as `ragboost_ragged`. Knows positions and tensors, not requests.
Causality is by absolute position, so a segment may hold any ascending positions of its request.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from ragboost.engine.runtime.kv import RequestKV

IMPLEMENTATION = "ragboost_ragged"

TILE = 32
"""Rows of a tile on a CPU: as many as SDPA processes at a time. Elsewhere there is one tile."""


class AttentionTile(NamedTuple):
    """Some rows of a segment and the keys they attend to.

    Attributes:
        rows, keys: ranges within the segment and its KV.
        mask: (rows, keys) bool; None: no mask is needed.
        is_causal: rows and keys are both all positions from 0 on, masked causally.
    """

    rows: slice
    keys: slice
    mask: Tensor | None
    is_causal: bool = False


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one request in a packed batch.

    Attributes:
        token_ids: tokens to compute.
        positions: of the tokens, ascending, (len(token_ids),). `kv` must hold every other position
            below the last one.
        num_keys: keys that the last row sees, its position + 1.
        kv: the request's KV; the rows' keys and values are written to it.
        wants_logits: whether the last row's logits are needed.
        windows: sliding windows that the layers have asked for.
    """

    token_ids: Sequence[int]
    positions: Tensor
    num_keys: int
    kv: RequestKV
    wants_logits: bool = True
    windows: set[int | None] = field(default_factory=set)
    _tiles: "dict[tuple[int | None, bool], list[AttentionTile]]" = field(
        default_factory=dict, init=False, repr=False
    )

    def tiles(self, window: int | None, *, is_masked: bool = True) -> "list[AttentionTile]":
        """Return tiles that cover the rows, made once per window.

        Args:
            window: keys that a row sees, itself included; None: all keys before it.
            is_masked: whether masks must be explicit; else a causal square, which costs half, may
                stand for a whole prompt.
        """
        if (window, is_masked) not in self._tiles:
            is_cut = window is not None and window < self.num_keys
            is_square = len(self.token_ids) == self.num_keys and not is_cut
            whole = slice(0, self.num_keys)
            if is_square and not is_masked:
                tiles = [AttentionTile(whole, whole, None, is_causal=True)]
            elif len(self.token_ids) == 1 and not is_cut:
                tiles = [AttentionTile(slice(0, 1), whole, None)]
            else:
                tiles = self._make_tiles(window if is_cut else None)
            self._tiles[window, is_masked] = tiles
        return self._tiles[window, is_masked]

    def _make_tiles(self, window: int | None) -> "list[AttentionTile]":
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
    """Writes the keys and values of a forward to the requests that its rows belong to."""

    def __init__(self, segments: Sequence[Segment], num_layers: int) -> None:
        self.segments = segments
        super().__init__(layers=[_PackedLayer(segments, layer) for layer in range(num_layers)])


class _PackedLayer(CacheLayerMixin):  # type: ignore[misc]  # as above
    """One layer of a `PackedCache`; the attention function reads the requests' KV itself."""

    is_sliding = False

    def __init__(self, segments: Sequence[Segment], layer: int) -> None:
        super().__init__()
        self._segments = segments
        self._layer = layer
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        pass  # the requests own the buffers

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write (1, heads, rows, dim) to the requests' KV; return both unchanged."""
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
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0  # positions are given explicitly

    def get_max_length(self) -> int:
        return -1  # no maximum


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
    """Compute attention of a packed batch, in the signature of transformers.

    Args:
        module: the attention layer; only its `layer_idx` is read.
        query: (1, query heads, rows, dim), the segments' rows one after the other.
        key, value: not read; `PackedCache` has written them to the requests' KV.
        attention_mask: not read; masks come from positions.
        ragged: the batch.
        scaling: factor on the scores; None: 1 / sqrt(dim).
        sliding_window: keys that a row sees, itself included; None: all before it.
        softcap: bound of the scores by tanh (Gemma 2).

    Returns:
        (1, rows, query heads, value dim), and no attention weights.
    """
    outputs, first = [], 0
    for segment in ragged.segments:
        segment.windows.add(sliding_window)
        keys, values = segment.kv.layers[module.layer_idx]
        outputs += [
            _attend(
                query[:, :, first + tile.rows.start : first + tile.rows.stop],
                keys[None, :, tile.keys],
                values[None, :, tile.keys],
                tile,
                scaling=scaling,
                softcap=softcap,
            )
            for tile in segment.tiles(sliding_window, is_masked=softcap is not None)
        ]
        first += len(segment.token_ids)
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tile: AttentionTile,
    *,
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    groups = query.shape[1] // key.shape[1]
    if softcap is None:
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=tile.mask,
            is_causal=tile.is_causal,
            scale=scaling,
            enable_gqa=groups != 1,
        )
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
    scores = softcap * torch.tanh(scores / softcap)
    if tile.mask is not None:
        scores = scores.masked_fill(~tile.mask, float("-inf"))
    return scores.softmax(-1, dtype=torch.float32).to(value.dtype) @ value


def register() -> None:
    """Register the attention function with transformers; a second call changes nothing."""
    AttentionInterface.register(IMPLEMENTATION, ragged_attention)
