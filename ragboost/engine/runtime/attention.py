"""Attention of rows at the end of what a request has computed: a decode row, or a run of a prompt.
Most need no mask."""

from dataclasses import replace

import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from ragboost.chunk_cache.model.attention.backend import AttentionInputs
from ragboost.chunk_cache.model.attention.dense import masked_attention
from ragboost.chunk_cache.model.attention.tiled import TiledAttention


class TrailingAttention(TiledAttention):
    """Attention of adjacent rows, the last of which sees all keys."""

    def attend(self, inputs: AttentionInputs) -> Tensor:
        query, key, value = inputs.query, inputs.key, inputs.value
        if inputs.window is not None and inputs.window >= inputs.num_keys:
            inputs = replace(inputs, window=None)
        if inputs.window is None and inputs.softcap is None and inputs.sinks is None:
            if query.shape[2] == 1:
                return masked_attention(inputs, query, key, value, None)
            # NOTE: on a GPU only the flash kernel shares keys between heads, in half precision.
            has_kernel = query.device.type == "cpu" or query.dtype.itemsize == 2
            is_shared = query.shape[1] != key.shape[1]
            if query.shape[2] == inputs.num_keys and (has_kernel or not is_shared):
                return F.scaled_dot_product_attention(
                    query, key, value, is_causal=True, scale=inputs.scaling, enable_gqa=is_shared
                )
        return super().attend(inputs)
