"""Attention over a packed batch: rows of several requests in one forward, each over its own KV.
Causality is by absolute position, so a segment may hold any ascending positions."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import masked_attention
from ragboost.chunk_cache.model.attention.tiled import TiledAttention
from ragboost.engine.runtime.kv import RequestKV

IMPLEMENTATION = "ragboost_ragged"


@dataclass(slots=True, eq=False)
class Segment:
    """The rows of one request in a packed batch."""

    token_ids: Sequence[int]
    positions: Tensor  # ascending, (rows,); `kv` holds every other one below the last
    num_keys: int  # that the last row sees, its position + 1
    kv: RequestKV  # the rows' keys and values are written to it
    num_logits: int = 1  # of so many of the last rows
    windows: set[int | None] = field(default_factory=set)  # that the layers have asked for
    memo: dict[Hashable, Any] = field(default_factory=dict)  # masks that the layers share


class PackedCache(Cache):  # type: ignore[misc]  # transformers is not typed
    def __init__(self, segments: Sequence[Segment], num_layers: int) -> None:
        self.segments = segments
        super().__init__(layers=[_PackedLayer(segments, layer) for layer in range(num_layers)])


class _PackedLayer(CacheLayerMixin):  # type: ignore[misc]  # as above
    """One layer; the attention function reads the requests' KV itself."""

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
    """Compute attention of a packed batch, in the signature of transformers: (1, rows, heads, dim).
    `query` has the segments' rows in turn; `key` and `value` are in the requests' KV."""
    outputs, first = [], 0
    for segment in ragged.segments:
        last = first + len(segment.token_ids)
        segment.windows.add(sliding_window)
        keys, values = segment.kv.layers[module.layer_idx]
        inputs = AttentionInputs(
            query[:, :, first:last],
            keys[None, :, : segment.num_keys],
            values[None, :, : segment.num_keys],
            segment.positions,
            scaling=query.shape[-1] ** -0.5 if scaling is None else scaling,
            window=sliding_window,
            softcap=softcap,
            memo=segment.memo,
        )
        outputs.append(attend(inputs))
        first = last
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return output.transpose(1, 2), None


def attend(inputs: AttentionInputs) -> Tensor:
    """Return the attention of one segment's rows, without a mask where none is needed."""
    query, key, value = inputs.query, inputs.key, inputs.value
    if inputs.window is not None and inputs.window >= inputs.num_keys:
        inputs = replace(inputs, window=None)
    if inputs.window is None and inputs.softcap is None:
        if query.shape[2] == 1:
            return masked_attention(inputs, query, key, value, None)
        # NOTE: on a GPU only the flash kernel shares keys between heads, in half precision.
        has_kernel = query.device.type == "cpu" or query.dtype.itemsize == 2
        is_shared = query.shape[1] != key.shape[1]
        if query.shape[2] == inputs.num_keys and (has_kernel or not is_shared):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, scale=inputs.scaling, enable_gqa=is_shared
            )
    return TiledAttention().attend(inputs)


def register() -> None:
    AttentionInterface.register(IMPLEMENTATION, ragged_attention)
